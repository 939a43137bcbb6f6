import os

import numpy as np
import pytest
from PIL import Image

from fedlib.checks import FedlibError
from fedlib.data import domains, vision
from fedlib.data.drifting import make_drifting
from fedlib.data.pool import Pool

pytestmark = pytest.mark.usefixtures("data_root")

REAL = os.environ.get("FEDLIB_DATA")
needs_real_data = pytest.mark.skipif(not REAL, reason="FEDLIB_DATA does not name a folder of real packs")


def write_digits(path, value, train=20, test=10, side=8, classes=domains.DIGITS, **extra):
    """A grey pack all of whose pixels are `value`, with the digits in turn."""
    count = train + test
    np.savez_compressed(
        path,
        images=np.full((count, side, side), value, np.uint8),
        labels=np.arange(count) % len(classes),
        classes=np.array(classes),
        split=np.repeat(np.array([0, 1], np.uint8), [train, test]),
        **extra,
    )


def write_four(root, last="mnist_m", **settings):
    for value, name in enumerate(("mnist", "usps", "svhn", last)):
        write_digits(root / f"{name}.npz", 10 * value, **settings)


def test_each_member_is_a_domain_with_its_own_split_at_32_pixels(tmp_path):
    write_four(tmp_path)
    pool = vision.load("digits4_mnist_m")
    assert pool.name == "digits4_mnist_m" and pool.domain_names == ("mnist", "usps", "svhn", "mnist_m")
    assert pool.images.shape == (120, 3, 32, 32) and pool.classes == domains.DIGITS
    assert (pool.images == 10 * pool.domains[:, None, None, None]).all()
    assert pool.split.tolist() == ([0] * 20 + [1] * 10) * 4
    assert pool.labels.tolist() == [*range(10)] * 12 and pool.partition_labels is pool.labels


def test_the_papers_set_has_syn_from_a_pack_or_from_folders(tmp_path):
    write_four(tmp_path, last="syn")
    assert vision.load("digits4_syn").domain_names == ("mnist", "usps", "svhn", "syn")
    (tmp_path / "syn.npz").unlink()
    for part in ("train", "test"):
        for digit in "0123456789":
            home = tmp_path / "syn" / part / digit
            home.mkdir(parents=True)
            Image.new("RGB", (9, 9), (200, 0, int(digit))).save(home / "x.png")
    pool = vision.load("digits4_syn")
    syn = pool.take(pool.domains == 3)
    assert syn.images[:, 2, 5, 5].tolist() == [*range(10)] * 2 == syn.labels.tolist()
    assert syn.split.tolist() == [1] * 10 + [0] * 10  # in the order of the folders' names


def test_scikit_learns_digits_need_no_file(tmp_path):
    for name in ("mnist", "usps", "svhn", "mnist_m", "femnist_digits_12clients"):
        write_digits(tmp_path / f"{name}.npz", 0)
    pool = vision.load("digits6")
    assert pool.domain_names == ("mnist", "usps", "svhn", "mnist_m", "femnist", "digits")
    own = pool.domains == 5
    assert np.bincount(pool.domains).tolist() == [30] * 5 + [1797]
    assert np.array_equal(pool.labels[own], vision.load("digits").labels)
    assert int(pool.split[own].sum()) == 360


def test_a_missing_member_is_named_with_the_way_to_it(tmp_path):
    write_four(tmp_path)
    with pytest.raises(FedlibError) as caught:
        vision.load("digits4_syn")
    for part in (
        "'digits4_syn' needs all of mnist, usps, svhn, syn: data set 'syn' is not here",
        str(tmp_path / "syn.npz"),
        "SYN, the synthetic digits",
        "digits4_mnist_m does without it",
    ):
        assert part in str(caught.value)
    (tmp_path / "usps.npz").unlink()
    with pytest.raises(
        FedlibError, match=r"'digits4_mnist_m:small' needs all of .*'usps' is not here.*FEDLIB_DOWNLOAD=1"
    ):
        vision.load("digits4_mnist_m:small")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"classes": ("zero", "one")}, "domain svhn: svhn has the classes zero, one; name them 0 to 9"),
        ({"test": 0}, "domain svhn: svhn has no test images"),
        ({"train": 0}, "domain svhn: svhn has no train images"),
    ],
)
def test_a_member_that_does_not_fit_is_refused(tmp_path, settings, message):
    write_four(tmp_path)
    write_digits(tmp_path / "svhn.npz", 0, **settings)
    with pytest.raises(FedlibError, match=f"data set 'digits4_mnist_m', {message}"):
        vision.load("digits4_mnist_m")


def test_a_combined_set_is_listed_only_with_all_its_members(tmp_path):
    write_four(tmp_path)
    lines = {line.name: line for line in vision.available()}
    assert lines["digits4_mnist_m"][2:] == (120, 10, "") and "digits4_mnist_m:small" in lines["digits4_mnist_m"].where
    assert not lines.keys() & {"digits4_syn", "digits6"}
    (tmp_path / "usps.npz").write_bytes(b"PK")
    assert "digits4_mnist_m" not in {line.name for line in vision.available()}


def test_check_counts_a_combined_set_by_domain(tmp_path):
    write_four(tmp_path)
    table = vision.check("digits4_mnist_m")
    assert table["train"].tolist() == [8] * 10 and table["usps test"].tolist() == [1] * 10


def test_a_combined_set_is_kept_until_a_member_changes(tmp_path):
    write_four(tmp_path)
    first = vision.load("digits4_mnist_m")
    assert vision.load("digits4_mnist_m") is first
    write_digits(tmp_path / "usps.npz", 99)
    os.utime(tmp_path / "usps.npz", ns=(1, 1))
    assert (vision.load("digits4_mnist_m").images[30:60] == 99).all()


def test_small_takes_at_most_2000_and_500_of_a_member_by_class(tmp_path):
    """mnist: 3,000 and 600; its grey levels are the images' numbers, so that images can be followed."""
    write_four(tmp_path)
    count = 3600
    np.savez(
        tmp_path / "mnist.npz",
        images=np.broadcast_to((np.arange(count) % 251).astype(np.uint8)[:, None, None], (count, 2, 2)),
        labels=np.minimum(np.arange(count) % 20, 9),  # 9 in 11 of 20
        classes=np.array(domains.DIGITS),
        split=np.repeat(np.array([0, 1], np.uint8), [3000, 600]),
    )
    pool = vision.load("digits4_mnist_m:small")
    own = pool.take(pool.domains == 0)
    assert pool.name == "digits4_mnist_m:small"
    assert np.bincount(pool.domains).tolist() == [2500, 30, 30, 30]
    assert np.bincount(own.labels[own.split == 0]).tolist() == [100] * 9 + [1100]
    assert np.bincount(own.labels[own.split == 1]).tolist() == [25] * 9 + [275]
    levels = own.images[:, 0, 0, 0].astype(int)
    assert (np.diff(np.unwrap(levels, period=251)) > 0).all()  # no image twice, and the pack's order


OFFICE = ("Art", "Clipart", "Product", "Real World")


def write_office(root):
    """Colours tell class, domain and picture; class k + 1 is after class k by the alphabet."""
    for d, domain in enumerate(OFFICE):
        for k in reversed(range(65)):
            for picture in range(2):
                path = root / "office_home" / domain / f"c{k:02}" / f"{picture}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.new("RGB", (3, 3), (k, d, picture)).save(path)


def test_office_home_20_is_the_first_20_classes_with_domain_and_split_of_the_whole(tmp_path):
    """FEROMA spec, 3.5."""
    write_office(tmp_path)
    pool, whole = vision.load("office_home:20"), vision.load("office_home")
    assert pool.name == "office_home:20" and pool.classes == tuple(f"c{k:02}" for k in range(20))
    colours = np.stack([pool.labels, pool.domains, np.arange(160) % 2], axis=1)
    assert pool.images.shape == (160, 3, 64, 64) and (pool.images == colours[:, :, None, None]).all()
    assert pool.labels.tolist() == [k for k in range(20) for _ in range(2)] * 4
    assert np.array_equal(pool.partition_labels, pool.labels)
    assert pool.domain_names == OFFICE and np.bincount(pool.domains).tolist() == [40] * 4
    assert pool.split.tolist() == ([0] * 8 + [1, 1]) * 16
    assert len(whole) == 4 * 65 * 2 and len(whole.classes) == 65
    with pytest.raises(FedlibError, match="'office_home:10': suffix: '10' is unknown; did you mean '20'"):
        vision.load("office_home:10")


def test_office_home_20_drifts_by_domains(tmp_path):
    """A phase has pictures of its domain alone, a visitor those of its own, and tests share none with training."""
    write_office(tmp_path)
    pool, drift = vision.load("office_home:20"), {"name": "domains", "phases": 3, "phase_samples": 10}
    fed = make_drifting(pool, 4, drift, rounds=3, seed=0)
    assert [one.label for one in fed.distributions] == list(OFFICE)
    trained, tested = set(), set()
    for round in (1, 2, 3):
        for client in fed.at(round).clients:
            own, test = (part.images[:, :, 0, 0].tolist() for part in (client.train, client.test))
            assert len(own) == 8 and {d for _, d, _ in own + test} == {client.domain} == {client.distribution}
            assert client.train.labels.tolist() == [k for k, _, _ in own]
            trained |= set(map(tuple, own))
            tested |= set(map(tuple, test))
    assert len({d for _, d, _ in trained}) > 1 and not trained & tested
    for visitor in fed.visitors:
        assert (visitor.samples.images[:, 1] == visitor.distribution).all()


def test_office_home_20_is_taken_of_a_pack_too_if_it_has_so_many_classes(tmp_path):
    names = np.array(list(domains.FOLDERS["office_home"].domains))
    where = {"domains": np.arange(66) % 4, "domain_names": names}
    write_digits(tmp_path / "office_home.npz", 1, train=44, test=22, classes=[f"c{k}" for k in range(22)], **where)
    pool = vision.load("office_home:20")
    assert len(pool) == 60 and pool.classes[-1] == "c19" and pool.domain_names == tuple(names)
    write_digits(tmp_path / "office_home.npz", 1, domains=np.arange(30) % 4, domain_names=names)
    os.utime(tmp_path / "office_home.npz", ns=(1, 1))
    with pytest.raises(
        FedlibError, match="'office_home:20': office_home has 10 classes; take all of it, 'office_home'"
    ):
        vision.load("office_home:20")


def test_stratified_is_exact_fixed_and_ascending():
    labels = np.repeat([0, 1, 2], [50, 30, 21])  # shares of 10 of 101: 4.95, 2.97, 2.08
    chosen = domains.stratified(labels, 10, np.random.RandomState(0))
    assert np.bincount(labels[chosen]).tolist() == [5, 3, 2]
    assert (np.diff(chosen) > 0).all()
    assert np.array_equal(chosen, domains.stratified(labels, 10, np.random.RandomState(0)))
    assert not np.array_equal(chosen, domains.stratified(labels, 10, np.random.RandomState(1)))
    assert domains.stratified(labels, 101, np.random.RandomState(0)).tolist() == list(range(101))


def grey_pool(name, count):
    labels = np.arange(count) % 10
    split = (np.arange(count) % 4 == 3).astype(np.uint8)
    images = np.broadcast_to(np.arange(count).astype(np.uint8)[:, None, None, None], (count, 3, 32, 32)).copy()
    return Pool(name, images, labels, domains.DIGITS, split, labels)


def test_a_members_small_cut_is_the_same_in_every_set(monkeypatch):
    monkeypatch.setattr(domains, "SMALL", (100, 20))
    four = domains.combine("digits4_mnist_m:small", True, lambda data: grey_pool(data, 240))
    six = domains.combine("digits6:small", True, lambda data: grey_pool(data, 240))
    assert len(four) == 480 and len(six) == 720
    for domain in range(4):
        own = four.images[four.domains == domain], six.images[six.domains == domain]
        assert np.array_equal(*own)
    first, second = (four.images[four.domains == domain] for domain in (0, 1))
    assert not np.array_equal(first, second)  # each member has a stream of its own


def test_resizing_is_bilinear_and_keeps_the_channels():
    """A ramp of 2 pixels, 0 and 80, made 4 wide: pixel centres at 1/4 and 3/4 between give 0, 20, 60, 80."""
    image = np.zeros((1, 3, 2, 2), np.uint8)
    image[0, 1, :, 1] = 80
    wide = domains.resized(image, 4)
    assert wide[0, 1].tolist() == [[0, 20, 60, 80]] * 4
    assert not wide[0, [0, 2]].any()
    assert domains.resized(image, 2) is image


@needs_real_data
def test_the_real_members_in_their_documented_numbers():
    pool = vision.load("digits6:small", REAL)
    counts = np.histogram2d(pool.domains, pool.split, bins=(6, 2))[0].astype(int)
    assert counts.tolist() == [[2000, 500]] * 5 + [[1437, 360]]
    full = vision.load("usps", REAL)
    share = np.bincount(full.labels[full.split == 0]) * 2000 / 7291
    held = np.bincount(pool.labels[(pool.domains == 1) & (pool.split == 0)])
    assert (np.abs(held - share) < 1).all()
    ink = pool.images.mean(axis=(1, 2, 3))
    assert ink[pool.domains == 0].mean() < 64 and ink[pool.domains == 4].mean() > 192  # white on black, black on white
