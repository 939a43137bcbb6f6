import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedlib.checks import FedlibError
from fedlib.data import folders, vision
from fedlib.data.federation import make_federation

REAL = os.environ.get("FEDLIB_DATA")
needs_samples = pytest.mark.skipif(
    not (REAL and (Path(REAL) / "raw-samples").is_dir()), reason="FEDLIB_DATA has no folder raw-samples"
)

CLINICS = {"acrima": (200, 10, 0), "Rim": (150, 20, 0), "REFUGE": (220, 30, 0)}
"""Retina's domains, each written in a case of its own, with the colour of its pictures; blue is the class."""


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    """An empty data root, and no download, whatever the environment says."""
    monkeypatch.setenv("FEDLIB_DATA", str(tmp_path))
    monkeypatch.delenv("FEDLIB_DOWNLOAD", raising=False)
    return tmp_path


def paint(path, colour=(1, 2, 3), size=(20, 30)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)
    return path


def write_retina(folder, clinics=CLINICS, parts=("",)):
    """In each clinic and part, of class normal one picture with blue 5, of class glaucoma two with blue 50 and 51."""
    for clinic, (red, green, _) in clinics.items():
        for part in parts:
            home = folder / clinic / part
            paint(home / "normal/a.png", (red, green, 5))
            paint(home / "glaucoma/b.png", (red, green, 50))
            paint(home / "glaucoma/c.png", (red, green, 51))


def test_retina_is_three_domains_in_the_papers_order_at_96_pixels(root):
    write_retina(root / "retina")
    paint(root / "retina/Drishti/other/d.png")
    pool = vision.load("retina")
    assert pool.images.shape == (9, 3, 96, 96) and pool.images.dtype == np.uint8
    assert pool.domain_names == ("ACRIMA", "RIM", "REFUGE") and pool.classes == ("glaucoma", "normal")
    assert pool.domains.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert pool.labels.tolist() == [0, 0, 1] * 3 and not pool.split.any()
    colours = pool.images[:, :, 50, 50].tolist()
    assert colours == [[red, green, blue] for red, green, _ in CLINICS.values() for blue in (50, 51, 5)]


def test_the_archives_names_and_parts_are_read_too(root):
    """FedLGD's retina_balanced: kaggle_arima, RIM, REFUGE; Training and Testing are pooled (FedDRM spec, 3.4)."""
    write_retina(
        root / "retina", {"kaggle_arima": (1, 1, 0), "RIM": (2, 2, 0), "REFUGE": (3, 3, 0)}, ("Training", "Testing")
    )
    pool = vision.load("retina")
    assert pool.domain_names == ("ACRIMA", "RIM", "REFUGE") and pool.classes == ("glaucoma", "normal")
    assert pool.images[:, 0, 0, 0].tolist() == [1] * 6 + [2] * 6 + [3] * 6
    assert pool.split.tolist() == [1, 1, 1, 0, 0, 0] * 3
    assert vision.check("retina").to_dict("index") == {
        "glaucoma": {"train": 6, "test": 6},
        "normal": {"train": 3, "test": 3},
    }


def test_client_i_is_clinic_i(root):
    write_retina(root / "retina", parts=("train", "test"))
    federation = make_federation(vision.load("retina"), 3, {"name": "by_source"}, None, seed=0)
    for client, (red, _, _) in zip(federation.clients, CLINICS.values(), strict=True):
        assert (client.train.images[:, 0] == red).all() and (client.test.images[:, 0] == red).all()
        assert (len(client.train), len(client.test)) == (4, 2)


def test_any_set_in_folders_loads_at_64_pixels_in_alphabetical_order(root):
    for domain in ("sketch", "Art"):
        for name in ("dog", "Cat"):
            paint(root / f"mine/{domain}/{name}/x.jpg")
    pool = vision.load("mine")
    assert pool.images.shape == (4, 3, 64, 64)
    assert pool.domain_names == ("Art", "sketch") and pool.classes == ("Cat", "dog")
    assert pool.name == "mine" and pool.partition_labels is pool.labels


def test_outermost_parts_make_a_set_without_domains(root):
    for part in ("train", "test"):
        paint(root / f"skin/{part}/nv/x.png")
    pool = vision.load("skin")
    assert pool.domains is None and pool.domain_names == () and pool.split.tolist() == [1, 0]


def test_a_picture_keeps_its_place_and_its_channels(root):
    """A red left and a blue right half, three times as large as the square, and not one: seen far from the seam."""
    picture = np.zeros((192, 300, 3), np.uint8)
    picture[:, :150, 0] = picture[:, 150:, 2] = 255
    path = root / "mine/a/b/x.png"
    paint(path)
    Image.fromarray(picture).save(path)
    image = vision.load("mine").images[0]
    assert (image[:, :, :30] == np.reshape([255, 0, 0], (3, 1, 1))).all()
    assert (image[:, :, 34:] == np.reshape([0, 0, 255], (3, 1, 1))).all()


@pytest.mark.parametrize("ending", [".jpg", ".JPEG", ".png", ".BMP", ".tif", ".tiff", ".webp", ".gif", ".ppm"])
def test_endings_of_either_case(root, ending):
    paint(root / f"mine/a/b/x{ending}", (100, 100, 100))
    assert np.abs(vision.load("mine").images.astype(int) - 100).max() <= 2


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGBA", "CMYK", "LA"])
def test_all_modes_of_8_bits_become_rgb(root, mode):
    path = root / "mine/a/b/x.tif"
    paint(path)
    Image.new("RGB", (8, 8), (255, 255, 255)).convert(mode).save(path)
    assert (vision.load("mine").images == 255).all()


def test_what_is_no_picture_or_hidden_is_left_unread(root):
    write_retina(root / "retina")
    for name in (".DS_Store", "._a.png", "Thumbs.db", "notes.txt"):
        (root / "retina/REFUGE/normal" / name).write_bytes(b"?")
    paint(root / "retina/REFUGE/.ipynb_checkpoints/x.png")
    paint(root / "mine/__MACOSX/b/x.png")
    paint(root / "mine/a/b/x.png")
    assert len(vision.load("retina")) == 9
    assert vision.load("mine").domain_names == ("a",)


def spoil(action):
    """`action` on a good retina folder."""
    return lambda folder: (write_retina(folder), action(folder))


def cut(path):
    path.write_bytes(path.read_bytes()[:60])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (spoil(lambda f: cut(f / "Rim/normal/a.png")), r"retina/Rim/normal/a\.png: cannot be read as an image"),
        (spoil(lambda f: (f / "Rim/normal/z.jpg").write_bytes(b"hello")), r"Rim/normal/z\.jpg: cannot be read"),
        (spoil(lambda f: (f / "Rim/normal/a.png").unlink()), "retina/Rim/normal: no image is in it"),
        (spoil(lambda f: (f / "Rim").rename(f / "Rom")), "retina: domain RIM is missing; there is acrima, REFUGE, Rom"),
        (spoil(lambda f: (f / "acrima").rename(f / "x")), "retina: domain ACRIMA or kaggle_arima is missing"),
        (spoil(lambda f: paint(f / "kaggle_arima/normal/a.png")), "acrima and kaggle_arima are one domain"),
        (spoil(lambda f: paint(f / "Rim/glaukoma/a.png")), r"retina/acrima: no class 'glaukoma', which .*Rim has"),
        (spoil(lambda f: (f / "Rim/normal").rename(f / "Rim/healthy")), "no class 'healthy', which .*Rim has"),
        (lambda f: paint(f / "a.png"), "retina: domain ACRIMA or kaggle_arima is missing; there is nothing"),
    ],
)
def test_what_is_wrong_is_named_with_its_path(root, make, message):
    make(root / "retina")
    with pytest.raises(FedlibError, match=message):
        vision.load("retina")


def test_two_folders_of_one_name_are_refused(root):
    write_retina(root / "retina")
    if (root / "retina/RIM").exists():
        pytest.skip("this file system does not tell upper from lower case")
    paint(root / "retina/Rim/NORMAL/a.png")
    with pytest.raises(FedlibError, match="Rim/normal and NORMAL differ in upper and lower case only"):
        vision.load("retina")


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([], "mine: no folder is in it; the layout is <domain>/<class>"),
        (["a/x.png"], "mine/a: no class folder is in it"),
        (["a/train/x.png"], "mine/a/train: no class folder is in it"),
    ],
)
def test_a_missing_level_is_named(root, files, message):
    (root / "mine").mkdir()
    for name in files:
        paint(root / "mine" / name)
    with pytest.raises(FedlibError, match=message):
        vision.load("mine")


def test_a_picture_of_more_than_8_bits_is_refused(root):
    path = paint(root / "mine/a/b/x.png")
    Image.fromarray(np.full((8, 8), 40_000, np.uint16)).save(path)
    with pytest.raises(FedlibError, match=r"x\.png: .*mode I;16, have more than 8 bits"):
        vision.load("mine")


def test_a_missing_set_says_what_its_folders_are(root):
    with pytest.raises(FedlibError) as caught:
        vision.load("retina")
    for part in (
        str(root / "retina.npz"),
        f"{root / 'retina'} (folders)",
        "<domain>/<class>/*.jpg with the domains ACRIMA or kaggle_arima, RIM, REFUGE",
        "retina_balanced",
        "--data or FEDLIB_DATA",
    ):
        assert part in str(caught.value)


def test_folders_have_no_coarse_labels(root):
    write_retina(root / "retina")
    with pytest.raises(FedlibError, match=r"'retina:coarse'.*without coarse labels; take 'retina'"):
        vision.load("retina:coarse")


def test_a_pack_goes_before_folders_and_a_plain_file_is_none(root):
    (root / "retina").write_bytes(b"a file")
    assert vision.find("retina") is None
    (root / "retina").unlink()
    write_retina(root / "retina")
    assert vision.find("retina") == root / "retina"
    (root / "retina.npz").write_bytes(b"")
    assert vision.find("retina") == root / "retina.npz"


def test_a_set_is_kept_until_a_file_comes_or_goes(root):
    write_retina(root / "retina")
    first = vision.load("retina")
    assert vision.load("retina") is first
    paint(root / "retina/Rim/normal/new.png")
    assert len(vision.load("retina")) == 10


def test_available_lists_sets_and_what_is_wrong_with_a_known_one(root):
    for name in ("a", "b"):
        paint(root / f"mine/{name}/dog/x.png")
    paint(root / "retina/ACRIMA/normal/x.png")
    paint(root / "holiday/beach.jpg")
    paint(root / "tiny:set/a/b/x.png")
    lines = {line.name: line for line in vision.available()}
    assert list(lines) == [*vision.EMBEDDED, "mine", "retina"]
    assert lines["mine"][1:] == (str(root / "mine"), 2, 1, "")
    assert lines["retina"].images is None and "domain RIM is missing" in lines["retina"].problem


def test_the_order_of_a_set_does_not_depend_on_the_file_systems(root, monkeypatch):
    write_retina(root / "retina")
    before = folders.scan(root / "retina", vision.FOLDERS["retina"])
    listed, walked = os.listdir, Path.iterdir
    monkeypatch.setattr(os, "listdir", lambda path: listed(path)[::-1])
    monkeypatch.setattr(Path, "iterdir", lambda path: iter(list(walked(path))[::-1]))
    assert folders.scan(root / "retina", vision.FOLDERS["retina"]) == before


@needs_samples
def test_real_pictures_in_this_layout():
    """Two pictures for each of PACS's four domains and seven classes; six of ACRIMA."""
    samples = Path(REAL) / "raw-samples"
    pool = vision.load("pacs", samples)
    assert pool.domain_names == ("art_painting", "cartoon", "photo", "sketch")
    assert pool.classes == ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
    assert np.histogram2d(pool.domains, pool.labels, bins=(4, 7))[0].tolist() == [[2] * 7] * 4
    acrima = folders.read(samples / "retina", "acrima", folders.Layout(96))
    assert acrima.images.shape == (6, 3, 96, 96) and acrima.domain_names == ("ACRIMA",)
    red, green, blue = acrima.images.mean(axis=(0, 2, 3))
    assert red > green > blue
