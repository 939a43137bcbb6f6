import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from trees import REAL, needs_samples, paint

from fedlib.checks import FedlibError
from fedlib.data import folders, vision
from fedlib.data.federation import make_federation

pytestmark = pytest.mark.usefixtures("data_root")

CLINICS = {"acrima": (200, 10, 0), "Rim": (150, 20, 0), "REFUGE": (220, 30, 0)}
"""Retina's domains, each written in a case of its own, with the colour of its pictures; blue is the class."""


def write_retina(folder, clinics=CLINICS, parts=("",)):
    """In each clinic and part, of class normal one picture with blue 5, of class glaucoma two with blue 50 and 51."""
    for clinic, (red, green, _) in clinics.items():
        for part in parts:
            home = folder / clinic / part
            paint(home / "normal/a.png", (red, green, 5))
            paint(home / "glaucoma/b.png", (red, green, 50))
            paint(home / "glaucoma/c.png", (red, green, 51))


def test_retina_is_three_domains_in_the_papers_order_at_96_pixels(data_root):
    write_retina(data_root / "retina")
    paint(data_root / "retina/Drishti/other/d.png")
    pool = vision.load("retina")
    assert pool.images.shape == (9, 3, 96, 96) and pool.images.dtype == np.uint8
    assert pool.domain_names == ("ACRIMA", "RIM", "REFUGE") and pool.classes == ("glaucoma", "normal")
    assert pool.domains.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert pool.labels.tolist() == [0, 0, 1] * 3 and not pool.split.any()
    colours = pool.images[:, :, 50, 50].tolist()
    assert colours == [[red, green, blue] for red, green, _ in CLINICS.values() for blue in (50, 51, 5)]


def test_the_archives_names_and_parts_are_read_too(data_root):
    """FedLGD's retina_balanced: kaggle_arima, RIM, REFUGE; Training and Testing are pooled (FedDRM spec, 3.4)."""
    write_retina(
        data_root / "retina",
        {"kaggle_arima": (1, 1, 0), "RIM": (2, 2, 0), "REFUGE": (3, 3, 0)},
        ("Training", "Testing"),
    )
    pool = vision.load("retina")
    assert pool.domain_names == ("ACRIMA", "RIM", "REFUGE") and pool.classes == ("glaucoma", "normal")
    assert pool.images[:, 0, 0, 0].tolist() == [1] * 6 + [2] * 6 + [3] * 6
    assert pool.split.tolist() == [1, 1, 1, 0, 0, 0] * 3
    assert vision.check("retina")[["train", "test"]].to_dict("index") == {
        "glaucoma": {"train": 6, "test": 6},
        "normal": {"train": 3, "test": 3},
    }


def test_client_i_is_clinic_i(data_root):
    write_retina(data_root / "retina", parts=("train", "test"))
    federation = make_federation(vision.load("retina"), 3, {"name": "by_source"}, None, seed=0)
    for client, (red, _, _) in zip(federation.clients, CLINICS.values(), strict=True):
        assert (client.train.images[:, 0] == red).all() and (client.test.images[:, 0] == red).all()
        assert (len(client.train), len(client.test)) == (4, 2)


def test_any_set_in_folders_loads_at_64_pixels_in_alphabetical_order(data_root):
    for domain in ("sketch", "Art"):
        for name in ("dog", "Cat"):
            paint(data_root / f"mine/{domain}/{name}/x.jpg")
    pool = vision.load("mine")
    assert pool.images.shape == (4, 3, 64, 64)
    assert pool.domain_names == ("Art", "sketch") and pool.classes == ("Cat", "dog")
    assert pool.name == "mine" and pool.partition_labels is pool.labels


def test_outermost_parts_make_a_set_without_domains(data_root):
    for part in ("train", "test"):
        paint(data_root / f"skin/{part}/nv/x.png")
    pool = vision.load("skin")
    assert pool.domains is None and pool.domain_names == () and pool.split.tolist() == [1, 0]


def test_a_picture_keeps_its_place_and_its_channels(data_root):
    """A red left and a blue right half, three times as large as the square, and not one: seen far from the seam."""
    picture = np.zeros((192, 300, 3), np.uint8)
    picture[:, :150, 0] = picture[:, 150:, 2] = 255
    path = data_root / "mine/a/b/x.png"
    paint(path)
    Image.fromarray(picture).save(path)
    image = vision.load("mine").images[0]
    assert (image[:, :, :30] == np.reshape([255, 0, 0], (3, 1, 1))).all()
    assert (image[:, :, 34:] == np.reshape([0, 0, 255], (3, 1, 1))).all()


@pytest.mark.parametrize("ending", [".jpg", ".JPEG", ".png", ".BMP", ".tif", ".tiff", ".webp", ".gif", ".ppm"])
def test_endings_of_either_case(data_root, ending):
    paint(data_root / f"mine/a/b/x{ending}", (100, 100, 100))
    assert np.abs(vision.load("mine").images.astype(int) - 100).max() <= 2


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGBA", "CMYK", "LA"])
def test_all_modes_of_8_bits_become_rgb(data_root, mode):
    path = data_root / "mine/a/b/x.tif"
    paint(path)
    Image.new("RGB", (8, 8), (255, 255, 255)).convert(mode).save(path)
    assert (vision.load("mine").images == 255).all()


def test_what_is_no_picture_or_hidden_is_left_unread(data_root):
    write_retina(data_root / "retina")
    for name in (".DS_Store", "._a.png", "Thumbs.db", "notes.txt"):
        (data_root / "retina/REFUGE/normal" / name).write_bytes(b"?")
    paint(data_root / "retina/REFUGE/.ipynb_checkpoints/x.png")
    paint(data_root / "mine/__MACOSX/b/x.png")
    paint(data_root / "mine/a/b/x.png")
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
def test_what_is_wrong_is_named_with_its_path(data_root, make, message):
    make(data_root / "retina")
    with pytest.raises(FedlibError, match=message):
        vision.load("retina")


def test_two_folders_of_one_name_are_refused(data_root):
    write_retina(data_root / "retina")
    if (data_root / "retina/RIM").exists():
        pytest.skip("this file system does not tell upper from lower case")
    paint(data_root / "retina/Rim/NORMAL/a.png")
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
def test_a_missing_level_is_named(data_root, files, message):
    (data_root / "mine").mkdir()
    for name in files:
        paint(data_root / "mine" / name)
    with pytest.raises(FedlibError, match=message):
        vision.load("mine")


def test_a_picture_of_more_than_8_bits_is_refused(data_root):
    path = paint(data_root / "mine/a/b/x.png")
    Image.fromarray(np.full((8, 8), 40_000, np.uint16)).save(path)
    with pytest.raises(FedlibError, match=r"x\.png: .*mode I;16, have more than 8 bits"):
        vision.load("mine")


def test_a_missing_set_says_what_its_folders_are(data_root):
    with pytest.raises(FedlibError) as caught:
        vision.load("retina")
    for part in (
        str(data_root / "retina.npz"),
        f"{data_root / 'retina'} (folders)",
        "<domain>/<class>/*.jpg with the domains ACRIMA or kaggle_arima, RIM, REFUGE",
        "retina_balanced",
        "--data or FEDLIB_DATA",
    ):
        assert part in str(caught.value)


def test_folders_have_no_coarse_labels(data_root):
    write_retina(data_root / "retina")
    with pytest.raises(FedlibError, match=r"'retina:coarse'.*retina has no coarse labels; take 'retina'"):
        vision.load("retina:coarse")


def test_a_pack_goes_before_folders_and_a_plain_file_is_none(data_root):
    (data_root / "retina").write_bytes(b"a file")
    assert vision.find("retina") is None
    (data_root / "retina").unlink()
    write_retina(data_root / "retina")
    assert vision.find("retina") == data_root / "retina"
    (data_root / "retina.npz").write_bytes(b"")
    assert vision.find("retina") == data_root / "retina.npz"


def test_a_set_is_kept_until_a_file_comes_or_goes(data_root):
    write_retina(data_root / "retina")
    first = vision.load("retina")
    assert vision.load("retina") is first
    paint(data_root / "retina/Rim/normal/new.png")
    assert len(vision.load("retina")) == 10


def test_available_lists_sets_and_what_is_wrong_with_a_known_one(data_root):
    for name in ("a", "b"):
        paint(data_root / f"mine/{name}/dog/x.png")
    paint(data_root / "retina/ACRIMA/normal/x.png")
    paint(data_root / "holiday/beach.jpg")
    paint(data_root / "tiny:set/a/b/x.png")
    lines = {line.name: line for line in vision.available()}
    assert list(lines) == [*vision.EMBEDDED, "mine", "retina"]
    assert lines["mine"][1:] == (str(data_root / "mine"), 2, 1, "")
    assert lines["retina"].images is None and "domain RIM is missing" in lines["retina"].problem


def test_the_order_of_a_set_does_not_depend_on_the_file_systems(data_root, monkeypatch):
    write_retina(data_root / "retina")
    before = folders.scan(data_root / "retina", vision.FOLDERS["retina"])
    listed, walked = os.listdir, Path.iterdir
    monkeypatch.setattr(os, "listdir", lambda path: listed(path)[::-1])
    monkeypatch.setattr(Path, "iterdir", lambda path: iter(list(walked(path))[::-1]))
    assert folders.scan(data_root / "retina", vision.FOLDERS["retina"]) == before


def test_a_changed_list_is_noticed_too(data_root):
    """Of pictures only those that come or go are, as there are many of them."""
    paint(data_root / "mine/a/dog/x.png")
    note = data_root / "mine/a/labels.CSV"
    note.write_text("old")
    before = folders.changed(data_root / "mine")
    os.utime(note, ns=(before + 10**9, before + 10**9))
    assert folders.changed(data_root / "mine") == before + 10**9


PACS = {"photo": 1670, "art_painting": 2048, "cartoon": 2344, "sketch": 3929}
OFFICE = {"caltech": 1123, "amazon": 958, "webcam": 295, "dslr": 157}
PACS_CLASSES = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")


@pytest.mark.parametrize(
    ("totals", "train", "test"),
    [
        (PACS, [1336, 1640, 1876, 3144], [334, 408, 468, 785]),
        (OFFICE, [899, 768, 237, 127], [224, 190, 58, 30]),
    ],
)
def test_two_of_ten_are_held_out_as_the_paper_counts_them(totals, train, test):
    """F²DC spec, 3.1: all eight pairs of train and test sizes."""
    splits = [np.array(folders.tenths(total)) for total in totals.values()]
    assert [int((split == 0).sum()) for split in splits] == train
    assert [int((split == 1).sum()) for split in splits] == test
    assert splits[0][:21].tolist() == [0] * 8 + [1, 1] + [0] * 8 + [1, 1] + [0]


def touch(home, count):
    """Empty files: enough for `folders.scan`, which opens none."""
    home.mkdir(parents=True)
    for k in range(count):
        (home / f"{k:04}.jpg").touch()


def test_a_tree_of_pacs_totals_is_divided_within_each_domain(data_root):
    """Its totals over seven classes of unequal size: image i of a domain counts on from class to class."""
    for domain, total in PACS.items():
        sizes = [total // 9, total // 7, total // 6, total // 11, total // 8, total // 12]
        for name, size in zip(PACS_CLASSES, [*sizes, total - sum(sizes)], strict=True):
            touch(data_root / "pacs" / domain / name, size)
    files = folders.scan(data_root / "pacs", vision.FOLDERS["pacs"])
    domains, split, labels = np.array(files.domains), np.array(files.split), np.array(files.labels)
    assert files.domain_names == tuple(PACS) and files.classes == PACS_CLASSES
    assert np.bincount(domains[split == 0]).tolist() == [1336, 1640, 1876, 3144]
    assert np.bincount(domains[split == 1]).tolist() == [334, 408, 468, 785]
    photo = split[domains == 0]
    dogs = 1670 // 9
    assert dogs == 185 and labels[domains == 0].tolist()[dogs - 1 : dogs + 1] == [0, 1]
    assert photo[dogs - 5 : dogs + 5].tolist() == [0, 0, 0, 0, 0, 0, 0, 0, 1, 1]  # positions 180 to 189, over the seam


def test_official_parts_go_before_the_rule_and_other_sets_are_all_train(data_root):
    for part, count in (("train", 3), ("test", 12)):
        touch(data_root / "parted/a" / part / "dog", count)
    touch(data_root / "plain/a/dog", 20)
    assert folders.scan(data_root / "parted", folders.Layout(held_out=True)).split == [1] * 12 + [0] * 3
    assert folders.scan(data_root / "plain", folders.Layout()).split == [0] * 20
    assert sum(folders.scan(data_root / "plain", folders.Layout(held_out=True)).split) == 4
    assert [name for name, layout in vision.FOLDERS.items() if layout.held_out] == [
        "pacs",
        "pacs_64",
        "office_caltech",
        "office_home",
    ]


@pytest.mark.parametrize(
    ("name", "side", "written", "domains"),
    [
        ("pacs", 128, ["Sketch", "art painting", "Photo", "cartoon"], tuple(PACS)),
        ("pacs", 128, ["sketch", "Art", "photo", "Cartoon"], tuple(PACS)),
        ("pacs_64", 64, ["sketch", "Art", "photo", "Cartoon"], tuple(PACS)),
        ("office_caltech", 32, ["amazon", "Caltech10", "DSLR", "webcam"], tuple(OFFICE)),
        ("office_home", 64, ["Art", "Clipart", "Product", "Real World"], ("Art", "Clipart", "Product", "Real World")),
        ("office_home", 64, ["art", "clipart", "product", "RealWorld"], ("Art", "Clipart", "Product", "Real World")),
        ("office_home", 64, ["Art", "Clipart", "Product", "Real_World"], ("Art", "Clipart", "Product", "Real World")),
    ],
)
def test_the_domains_are_in_the_papers_order_under_any_of_their_names(data_root, name, side, written, domains):
    """One picture a class, of a colour that tells its domain; of the first class ten, to see who is held out."""
    classes = {"pacs": 7, "pacs_64": 7, "office_caltech": 10, "office_home": 65}[name]
    for index, domain in enumerate(written):
        for k in range(classes):
            paint(data_root / name / domain / f"c{k:02}" / "x.png", (40 * index, 7, 9))
        for k in range(1, 10):
            paint(data_root / name / domain / "c00" / f"{k}.png", (40 * index, 7, 9))
    pool = vision.load(name)
    count = classes + 9
    assert pool.images.shape == (4 * count, 3, side, side) and pool.domain_names == domains
    assert pool.split.tolist() == folders.tenths(count) * 4 and pool.split[:10].tolist() == [0] * 8 + [1, 1]
    order = [next(i for i, own in enumerate(written) if own[:3].lower() == domain[:3].lower()) for domain in domains]
    assert pool.images[::count, 0, 0, 0].tolist() == [40 * index for index in order]


def test_a_set_of_another_number_of_classes_is_refused(data_root):
    for domain in OFFICE:
        touch(data_root / "office_caltech" / domain / "mug", 1)
    with pytest.raises(FedlibError, match=r"office_caltech: each domain has 1 class folders, but .* has 10 classes"):
        vision.load("office_caltech")


@needs_samples
def test_real_pictures_in_this_layout():
    """Two pictures for each of PACS's four domains and seven classes; six of ACRIMA."""
    samples = Path(REAL) / "raw-samples"
    pool = vision.load("pacs", samples)
    assert pool.images.shape == (56, 3, 128, 128)
    assert pool.domain_names == tuple(PACS) and pool.classes == PACS_CLASSES
    assert np.histogram2d(pool.domains, pool.labels, bins=(4, 7))[0].tolist() == [[2] * 7] * 4
    assert pool.split.tolist() == ([0] * 8 + [1, 1] + [0] * 4) * 4
    colour = np.ptp(pool.images.astype(int), axis=1).mean(axis=(1, 2))
    assert colour[pool.domains == 3].max() < 3 < colour[pool.domains == 0].mean()  # sketches are black on white
    acrima = folders.read(samples / "retina", "acrima", folders.Layout(96))
    assert acrima.images.shape == (6, 3, 96, 96) and acrima.domain_names == ("ACRIMA",)
    red, green, blue = acrima.images.mean(axis=(0, 2, 3))
    assert red > green > blue
