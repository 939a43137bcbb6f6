"""Sets in layouts of their own, on trees written here, and on real pictures of TinyImageNet."""

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from trees import REAL, needs_samples, paint

from fedlib.checks import FedlibError
from fedlib.data import layouts, vision
from fedlib.data.federation import make_federation

pytestmark = pytest.mark.usefixtures("data_root")


def listed():
    return {line.name: line for line in vision.available()}


KVASIR = ("dyed-lifted-polyps", "esophagitis", "normal-cecum", "polyps", "a", "b", "c", "d")


def test_kvasir_is_eight_class_folders_without_domains_at_64_pixels(data_root):
    for k, name in enumerate(KVASIR):
        for i in range(k + 1):
            paint(data_root / "kvasir" / name / f"{i}.jpg", (20 * k, 7, 9))
    pool = vision.load("kvasir")
    assert pool.images.shape == (36, 3, 64, 64) and pool.domains is None and not pool.split.any()
    assert pool.classes == tuple(sorted(KVASIR))
    held = np.bincount(pool.labels)
    assert [held[pool.classes.index(name)] for name in KVASIR] == [1, 2, 3, 4, 5, 6, 7, 8]
    reds = {name: pool.images[pool.labels == pool.classes.index(name), 0].mean() for name in KVASIR}
    assert all(abs(reds[name] - 20 * k) < 3 for k, name in enumerate(KVASIR))
    assert {line.name: line[2:4] for line in vision.available()}["kvasir"] == (36, 8)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([f"{name}/x.png" for name in KVASIR[:7]], "kvasir: there are 7 class folders, but this set has 8 classes"),
        (["x.png"], r"kvasir: no class folder is in it; the layout is <class>/\*.jpg"),
        (None, r"'kvasir' is not here.*folders .*kvasir/<class>/\*\.jpg \(Kvasir v2 by Pogorelov"),
    ],
)
def test_a_wrong_kvasir_is_named(data_root, files, message):
    for name in files or []:
        paint(data_root / "kvasir" / name)
    with pytest.raises(FedlibError, match=message):
        vision.load("kvasir")


CENTRES = ("0", "2", "10")
"""Each with one picture of every label; the red of a picture is its centre's place, green its label, blue its part."""


def lesions(ending=""):
    """FLamby's table, lines of centres mixed: odd labels of centre 10 are test."""
    rows = []
    for label in range(8):
        for place, centre in enumerate(CENTRES[::-1]):
            part = "test" if centre == "10" and label % 2 else "train"
            rows.append([f"ISIC_{2 - place}{label}{ending}", "0.0", str(label), centre, part, f"{part}_{centre}"])
    return rows


def write_isic(folder, rows, header=("image", "MEL", "target", "center", "fold", "fold2"), images="images"):
    for place in range(3):
        for label in range(8):
            test = 200 if place == 2 and label % 2 else 0
            paint(folder / images / f"ISIC_{place}{label}.png", (100 * place, 20 * label, test))
    (folder / "train_test_split.csv").write_text("\n".join(",".join(row) for row in [header, *rows]) + "\n")


def colours(pool):
    """Place of the centre, label and part, as the pictures' colours tell."""
    red, green, blue = pool.images[:, :, 5, 5].T.astype(int)
    return (red // 100).tolist(), (green // 20).tolist(), (blue // 200).tolist()


def test_isic_is_a_domain_a_centre_at_224_pixels(data_root):
    write_isic(data_root / "fed_isic2019", lesions())
    paint(data_root / "fed_isic2019/images/unlisted.png")
    pool = vision.load("fed_isic2019")
    assert pool.images.shape == (24, 3, 224, 224) and pool.classes == layouts.LESIONS
    assert pool.domain_names == ("centre 0", "centre 2", "centre 10")
    assert (pool.domains.tolist(), pool.labels.tolist(), pool.split.tolist()) == colours(pool)
    assert np.bincount(pool.domains).tolist() == [8, 8, 8] and pool.split.sum() == 4
    assert listed()["fed_isic2019"][1:] == (str(data_root / "fed_isic2019"), 24, 8, "")
    table = vision.check("fed_isic2019")
    assert table["train"].tolist() == [3, 2] * 4 and table["centre 10 test"].tolist() == [0, 1] * 4
    assert table["centre 2 train"].tolist() == [1] * 8 and len(table.columns) == 8


def test_isic_by_its_centres_is_a_client_each(data_root):
    write_isic(data_root / "fed_isic2019", lesions())
    federation = make_federation(vision.load("fed_isic2019"), 3, {"name": "by_source"}, None, seed=0, test_share=0.25)
    assert [client.domain for client in federation.clients] == [0, 1, 2] and federation.sizes == (6, 6, 6)
    for place, client in enumerate(federation.clients):
        assert (client.train.images[:, 0] // 100 == place).all()


def test_isic_goes_by_other_names_of_columns_and_folder_and_without_parts(data_root):
    rows = [[row[0], row[2], row[3]] for row in lesions(".png")]
    write_isic(
        data_root / "fed_isic2019", rows, ("image", "label", "center"), images="ISIC_2019_Training_Input_preprocessed"
    )
    (data_root / "fed_isic2019/ISIC_2019_Training_GroundTruth.csv").write_text("image,MEL\nISIC_00,1.0\n")
    pool = vision.load("fed_isic2019")
    assert (pool.domains.tolist(), pool.labels.tolist()) == colours(pool)[:2] and not pool.split.any()


def changed(line, column, value):
    """The lines of `lesions` with one value changed; line 2 is the first below the header."""
    rows = lesions()
    rows[line - 2][column] = value
    return rows


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (changed(5, 2, "8"), r"train_test_split\.csv, line 5: target '8' is not a whole number from 0 to 7"),
        (changed(5, 2, "1.0"), r"line 5: target '1\.0' is not a whole number"),
        (changed(2, 3, ""), "line 2: center '' is not the name of a centre"),
        (changed(9, 4, "val"), "line 9: fold 'val' is not train or test"),
        (changed(7, 0, "ISIC_99"), "line 7: image 'ISIC_99' is not a picture in .*fed_isic2019/images"),
        (changed(7, 0, "../images/ISIC_00"), "line 7: image '../images/ISIC_00' is not a picture"),
        (changed(3, 0, "ISIC_20"), "line 3: image 'ISIC_20' is not new: an earlier line has it, too"),
        (changed(3, 0, "ISIC_20.png"), r"line 3: image 'ISIC_20\.png' is not new"),
        ([row for row in lesions() if row[2] != "5"], "no line is of DF; take all of the set"),
        ([], r"fed_isic2019: one \.csv has to be a table .*; none is; add it"),
    ],
)
def test_a_wrong_line_of_isics_table_is_named(data_root, rows, message):
    write_isic(data_root / "fed_isic2019", rows)
    with pytest.raises(FedlibError, match=message):
        vision.load("fed_isic2019")
    assert listed()["fed_isic2019"].images is None


def spoil_isic(action):
    return lambda folder: (write_isic(folder, lesions()), action(folder))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (spoil_isic(lambda f: (f / "images/ISIC_00.png").write_bytes(b"?")), r"images/ISIC_00\.png: cannot be read as"),
        (spoil_isic(lambda f: paint(f / "images/ISIC_00.jpg")), "images: ISIC_00 is there with two endings"),
        (spoil_isic(lambda f: (f / "train_test_split.csv").write_bytes(b"\xff\xfe,")), "cannot be read as a table"),
        (spoil_isic(lambda f: (f / "train_test_split.csv").unlink()), "none is; add it"),
        (
            spoil_isic(lambda f: (f / "b.csv").write_bytes((f / "train_test_split.csv").read_bytes())),
            r"b\.csv and train_test_split\.csv could be; keep one",
        ),
        (
            spoil_isic(lambda f: ((f / "images").rename(f / "a"), (f / "b").mkdir())),
            "there is a, b; put the pictures into .*fed_isic2019/images",
        ),
    ],
)
def test_a_damaged_isic_is_named(data_root, make, message):
    make(data_root / "fed_isic2019")
    with pytest.raises(FedlibError, match=message):
        vision.load("fed_isic2019")


def test_a_changed_table_is_read_anew(data_root):
    write_isic(data_root / "fed_isic2019", lesions())
    first = vision.load("fed_isic2019")
    assert vision.load("fed_isic2019") is first
    table = data_root / "fed_isic2019/train_test_split.csv"
    table.write_text(table.read_text().replace(",test,", ",train,"))
    os.utime(table, ns=(4 * 10**18, 4 * 10**18))
    assert not vision.load("fed_isic2019").split.any()


WNIDS = ("n03", "n01", "n02")
"""As wnids.txt has them: not in alphabetical order."""


def write_tiny(folder):
    """Of each class two pictures in train and one in val; red is the class's number, green the part."""
    folder.mkdir(parents=True)
    (folder / "wnids.txt").write_text("\n".join(WNIDS) + "\n")
    lines = []
    for k, wnid in enumerate(WNIDS):
        for i in range(2):
            paint(folder / f"train/{wnid}/images/{wnid}_{i}.JPEG", (int(wnid[1:]) * 60, 0, 0), (64, 64))
        (folder / f"train/{wnid}/{wnid}_boxes.txt").write_text("")
        paint(folder / f"val/images/val_{k}.JPEG", (int(wnid[1:]) * 60, 200, 0), (64, 64))
        lines.append(f"val_{k}.JPEG\t{wnid}\t0\t0\t1\t1")
    paint(folder / "test/images/test_0.JPEG")
    (folder / "val/val_annotations.txt").write_text("\n".join(lines))


@pytest.mark.parametrize("name", ["tiny_imagenet", "tiny-imagenet-200"])
def test_tiny_imagenet_is_read_as_published_with_val_as_test(data_root, name):
    write_tiny(data_root / "tiny-imagenet-200")
    pool = vision.load(name)
    assert pool.images.shape == (9, 3, 64, 64) and pool.classes == ("n01", "n02", "n03") and pool.domains is None
    assert pool.labels.tolist() == [0, 0, 1, 1, 2, 2, 0, 1, 2] and pool.split.tolist() == [0] * 6 + [1] * 3
    assert np.abs(pool.images[:, 0, 9, 9].astype(int) - 60 * (pool.labels + 1)).max() < 5
    assert np.abs(pool.images[:, 1, 9, 9].astype(int) - 200 * pool.split.astype(int)).max() < 5
    assert listed()["tiny_imagenet"][1:] == (str(data_root / "tiny-imagenet-200"), 9, 3, "")
    assert "tiny-imagenet-200" not in listed()


def rewrite(path, old, new):
    path.write_text(path.read_text().replace(old, new))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda f: (f / "wnids.txt").unlink(), r"wnids\.txt cannot be read"),
        (lambda f: (f / "wnids.txt").write_text("\n"), r"wnids\.txt is empty"),
        (lambda f: rewrite(f / "wnids.txt", "n02", "n04"), r"train/n04/images is missing"),
        (lambda f: (f / "val/val_annotations.txt").unlink(), r"val_annotations\.txt cannot be read"),
        (lambda f: rewrite(f / "val/val_annotations.txt", "n01", "n09"), r"val_annotations\.txt, line 2: 'val_1\.JPEG"),
        (lambda f: rewrite(f / "val/val_annotations.txt", "val_1.", "val_0."), "line 2: 'val_0.* does not give a new"),
        (lambda f: rewrite(f / "val/val_annotations.txt", "val_0.", "../val_0."), "line 1: '../val_0"),
        (lambda f: paint(f / "val/images/val_9.JPEG"), r"val_9\.JPEG of val/images, one of 1, has no line"),
        (lambda f: (f / "train/n01/images/n01_0.JPEG").write_bytes(b"?"), r"n01_0\.JPEG: cannot be read as an image"),
    ],
)
def test_a_damaged_tiny_imagenet_is_named(data_root, spoil, message):
    write_tiny(data_root / "tiny-imagenet-200")
    spoil(data_root / "tiny-imagenet-200")
    with pytest.raises(FedlibError, match=message):
        vision.load("tiny_imagenet")


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("tiny_imagenet", ("tiny-imagenet-200 (folder)", "val/val_annotations.txt", "CS231n")),
        ("fed_isic2019", ("fed_isic2019 (folder)", "columns image, center, target or label", "FLamby")),
        ("femnist", ("femnist (folder)", "{train,test}/*.json", "TalwalkarLab/leaf")),
        ("tiny_imagnet", ("did you mean 'tiny_imagenet'",)),
    ],
)
def test_a_missing_set_says_what_has_to_lie_where(data_root, name, parts):
    with pytest.raises(FedlibError) as caught:
        vision.load(name)
    for part in (f"{name!r} is not here", str(data_root / f"{name}.npz"), "--data or FEDLIB_DATA", *parts):
        assert part in str(caught.value)


def test_a_pack_goes_before_the_layout_and_coarse_labels_are_refused(data_root):
    write_tiny(data_root / "tiny-imagenet-200")
    with pytest.raises(FedlibError, match="has no coarse labels; take 'tiny_imagenet'"):
        vision.load("tiny_imagenet:coarse")
    assert vision.find("tiny_imagenet") == data_root / "tiny-imagenet-200"
    (data_root / "tiny_imagenet.npz").write_bytes(b"")
    assert vision.find("tiny_imagenet") == data_root / "tiny_imagenet.npz"


@needs_samples
def test_real_pictures_of_tiny_imagenet():
    samples = Path(REAL) / "raw-samples"
    pool = vision.load("tiny_imagenet", samples)
    assert pool.images.shape == (30, 3, 64, 64)
    assert pool.classes == ("n01443537", "n01629819", "n01641577", "n01644900", "n01698640")
    assert np.bincount(pool.labels[pool.split == 0]).tolist() == [4] * 5
    assert np.bincount(pool.labels[pool.split == 1]).tolist() == [2] * 5
    with Image.open(samples / "tiny-imagenet-200/val/images/val_611.JPEG") as image:
        goldfish = np.asarray(image.convert("RGB")).transpose(2, 0, 1)
    assert np.array_equal(pool.images[20], goldfish) and pool.labels[20] == 0  # val_611 is before val_68 by name
    red, _, blue = pool.images[pool.labels == 0].mean(axis=(0, 2, 3))
    assert red > blue
