import os
import sysconfig
from pathlib import Path

import pytest
import torch

from headrace.data import Batches, Text, load


def text_of(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.tolist())


def write_files(folder: Path, count: int, size: int = 100) -> dict[str, bytes]:
    """Files whose every line names its file, so that each byte of text can be traced."""
    contents = {}
    for i in range(count):
        line = f"file{i:03d} says so\n".encode()
        name = f"{'sub/' if i % 2 else ''}f{i:03d}.txt"
        contents[name] = (line * (size // len(line) + 1))[:size]
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(contents[name])
    return contents


# --- reading -------------------------------------------------------------------------------------------------------


def test_whole_files_are_held_out_and_no_file_is_in_both_parts(tmp_path):
    contents = write_files(tmp_path, 100)
    text = load(tmp_path)
    train, held_out = text_of(text.train), text_of(text.held_out)
    assert len(held_out) == 500  # 5 %
    in_train = {name for name, content in contents.items() if content in train}
    in_held_out = {name for name, content in contents.items() if content in held_out}
    assert in_train | in_held_out == set(contents)
    assert not in_train & in_held_out
    assert len(train) + len(held_out) == 100 * 100


def test_held_out_files_come_from_all_over_the_folder(tmp_path):
    contents = write_files(tmp_path, 200)
    held_out = text_of(load(tmp_path).held_out)
    places = [i for i, (_, content) in enumerate(contents.items()) if content in held_out]
    assert min(places) < 100 < max(places)


def test_a_copy_of_a_file_is_kept_once_so_that_none_leaks(tmp_path):
    contents = write_files(tmp_path, 60)
    for name, content in contents.items():
        (tmp_path / f"copy-of-{name.replace('/', '-')}").write_bytes(content)
    text = load(tmp_path)
    train, held_out = text_of(text.train), text_of(text.held_out)
    assert len(train) + len(held_out) == 60 * 100
    assert held_out
    assert not any(content in train and content in held_out for content in contents.values())
    assert "60 repeated files left out" in text.notes


def test_the_text_does_not_depend_on_the_order_in_which_the_disk_lists_files(tmp_path, monkeypatch):
    for folder in "abc":
        write_files(tmp_path / folder, 20)
        (tmp_path / folder / "own").write_bytes(folder.encode() * 50)
    listed = os.walk

    def backwards(top):
        for root, folders, names in listed(top):
            folders.sort(reverse=True)
            yield root, folders, sorted(names, reverse=True)

    one = load(tmp_path)
    monkeypatch.setattr(os, "walk", backwards)
    other = load(tmp_path)
    assert torch.equal(one.train, other.train)
    assert torch.equal(one.held_out, other.held_out)


def test_of_one_file_the_end_is_held_out(tmp_path):
    content = bytes(range(1, 201)) * 5
    (tmp_path / "a.txt").write_bytes(content)
    text = load(tmp_path / "a.txt")
    assert text.train.dtype == text.held_out.dtype == torch.uint8
    assert text_of(text.train) == content[:950]
    assert text_of(text.held_out) == content[950:]


def test_of_a_few_large_files_the_end_is_held_out_and_it_says_so(tmp_path):
    contents = write_files(tmp_path, 3, size=1000)
    (tmp_path / "a-small-one").write_bytes(b"too little to test on\n")
    text = load(tmp_path)
    whole = b"too little to test on\n" + b"".join(contents[name] for name in ("f000.txt", "f002.txt", "sub/f001.txt"))
    assert text_of(text.train) + text_of(text.held_out) == whole
    assert len(text.held_out) == 151
    assert any("too large to hold out whole" in note for note in text.notes)


def test_binary_hidden_empty_and_linked_files_are_left_out_of_a_folder(tmp_path):
    (tmp_path / "elsewhere").write_bytes(b"not below the folder")
    tmp_path /= "folder"
    contents = write_files(tmp_path, 40)
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\0\0" + b"x" * 500)
    (tmp_path / ".hidden").write_bytes(b"hidden")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "config").write_bytes(b"hidden too")
    (tmp_path / "empty").touch()
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path.parent / "elsewhere")
    text = load(tmp_path)
    assert len(text.train) + len(text.held_out) == sum(map(len, contents.values()))
    assert "1 binary file left out" in text.notes


def test_a_limit_on_bytes_is_kept_to_the_byte_and_said(tmp_path):
    contents = write_files(tmp_path, 40)
    text = load(tmp_path, max_bytes=1050)
    names = sorted(contents, key=lambda name: ("/" in name, name))  # a folder's own files come first
    assert len(text.train) + len(text.held_out) == 1050
    assert contents[names[9]] in text_of(text.train) + text_of(text.held_out)
    assert contents[names[10]] not in text_of(text.train) + text_of(text.held_out)
    assert text.notes[0].startswith("1,050 bytes of 11 files")
    assert any("first 1,050 bytes" in note for note in text.notes)
    (tmp_path / "one").write_bytes(b"abc" * 100)
    one = load(tmp_path / "one", max_bytes=100)
    assert text_of(one.train) + text_of(one.held_out) == (b"abc" * 100)[:100]


def test_the_default_is_source_text_of_the_standard_library():
    text = load(max_bytes=1_000_000)
    assert len(text.train) + len(text.held_out) == 1_000_000
    assert 40_000 < len(text.held_out) <= 50_000
    assert text_of(text.train).count(b"import ") > 100
    assert text_of(text.held_out).count(b"\ndef ") > 10
    assert torch.equal(load(max_bytes=1_000_000).train, text.train)


def test_of_the_standard_library_tests_tables_and_installed_packages_are_skipped(tmp_path, monkeypatch):
    for name in ("os.py", "json/decoder.py", "test/t.py", "json/tests/t.py", "encodings/cp1.py", "site-packages/x.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# {name}\n")
    (tmp_path / "notes.txt").write_text("not source")
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(tmp_path))
    text = load()
    assert text_of(text.train) + text_of(text.held_out) == b"# os.py\n# json/decoder.py\n"


def test_a_file_that_cannot_be_read_is_left_out_and_counted(tmp_path, monkeypatch):
    write_files(tmp_path, 40)
    read = Path.read_bytes

    def refuse(path):
        if path.name == "f003.txt":
            raise PermissionError(path)
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", refuse)
    text = load(tmp_path)
    assert len(text.train) + len(text.held_out) == 3900
    assert "1 unreadable file left out" in text.notes


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda path: path / "nowhere", FileNotFoundError, "no file or folder .*nowhere"),
        (lambda path: path, ValueError, "no text in .*0 bytes of 0 files"),
        (lambda path: (path / "e").touch() or path / "e", ValueError, "is empty"),
        (lambda path: (path / "b").write_bytes(b"a\0b") and path / "b", ValueError, "looks binary"),
        (lambda path: (path / "b").write_bytes(b"a\0b") and path, ValueError, "no text in .*1 binary"),
    ],
)
def test_no_text_is_refused_by_path(tmp_path, make, error, message):
    with pytest.raises(error, match=message):
        load(make(tmp_path))


def test_a_limit_of_no_bytes_is_refused(tmp_path):
    with pytest.raises(ValueError, match="max_bytes=0"):
        load(tmp_path, max_bytes=0)


# --- batches -------------------------------------------------------------------------------------------------------


def ramp(train: int = 1000, held_out: int = 200) -> Text:
    """Every byte is one more than the byte before it, modulo 100; held-out bytes are 100 and more."""
    return Text(
        (torch.arange(train) % 100).to(torch.uint8),
        (100 + torch.arange(held_out) % 100).to(torch.uint8),
    )


def test_a_batch_has_tokens_and_the_bytes_after_them():
    tokens, targets = Batches(ramp(), batch=8, sequence=16).batch(0)
    assert tokens.shape == targets.shape == (8, 16)
    assert tokens.dtype == targets.dtype == torch.int64
    assert torch.equal(targets, (tokens + 1) % 100)
    assert torch.equal(tokens[:, 1:], targets[:, :-1])


def test_a_batch_follows_from_seed_and_step_alone():
    one, other = Batches(ramp(), batch=8, sequence=16, seed=3), Batches(ramp(), batch=8, sequence=16, seed=3)
    for step in (0, 1):
        other.batch(step)
    torch.manual_seed(99)  # nobody's generator is used …
    before = torch.get_rng_state()
    for a, b in zip(one.batch(5), other.batch(5), strict=True):
        assert torch.equal(a, b)
    assert torch.equal(torch.get_rng_state(), before)  # … nor moved


def test_batches_differ_from_step_to_step_from_row_to_row_and_from_seed_to_seed():
    noise = torch.randint(256, (10_000,), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    text = Text(noise, noise[:100])
    first, second = (Batches(text, batch=8, sequence=16, seed=seed) for seed in (0, 1))
    rows = {tuple(row) for b in (first, second) for step in range(10) for row in b.batch(step)[0].tolist()}
    assert len(rows) > 150  # of 160: a window may be drawn twice


def test_every_window_of_the_training_text_occurs_and_no_held_out_byte():
    tokens = torch.cat([Batches(ramp(60), batch=16, sequence=10).batch(step)[0] for step in range(50)])
    assert set(tokens[:, 0].tolist()) == set(range(50))
    assert tokens.max() < 100


def test_held_out_batches_are_fixed_and_cover_the_held_out_text():
    a, b = (list(Batches(ramp(), batch=4, sequence=20, seed=seed).held_out_batches(3)) for seed in (0, 1))
    assert len(a) == 3
    for (x, y), (again, _) in zip(a, b, strict=True):
        assert x.shape == (4, 20)
        assert torch.equal(x, again)
        assert torch.equal(y, 100 + (x + 1) % 100)
        assert x.min() >= 100
    starts = torch.cat([x for x, _ in a])[:, 0].tolist()
    assert starts[0] == 100
    assert starts[-1] == 100 + (200 - 21) % 100


@pytest.mark.parametrize("batch", [1, 3])
def test_the_shortest_held_out_text_is_one_row(batch):
    ((x, y),) = Batches(ramp(held_out=21), batch=batch, sequence=20).held_out_batches(1)
    assert x.tolist() == [list(range(100, 120))] * batch
    assert y[0].tolist() == list(range(101, 121))


def test_too_little_text_is_refused_by_part_and_number(tmp_path):
    (tmp_path / "tiny").write_bytes(b"tiny")
    with pytest.raises(ValueError, match=r"held-out text has 0 bytes"):
        Batches(load(tmp_path), batch=1, sequence=1)
    with pytest.raises(ValueError, match=r"training text has 16 bytes, .* sequence=16, which needs 17"):
        Batches(ramp(train=16), batch=1, sequence=16)
    with pytest.raises(ValueError, match=r"held-out text has 10 bytes"):
        Batches(ramp(held_out=10), batch=1, sequence=16)
    Batches(ramp(train=17, held_out=17), batch=1, sequence=16).batch(0)


def test_batches_share_the_memory_of_the_text():
    text = ramp()
    batches = Batches(text, batch=2, sequence=8)
    text.train.fill_(7)
    assert batches.batch(0)[0].unique().tolist() == [7]


def test_impossible_numbers_are_refused_by_name():
    for arguments, message in (({"batch": 0}, "batch=0"), ({"sequence": 0}, "sequence=0"), ({"seed": -1}, "seed=-1")):
        with pytest.raises(ValueError, match=message):
            Batches(ramp(), **{"batch": 1, "sequence": 1} | arguments)
    with pytest.raises(ValueError, match="step=-1"):
        Batches(ramp(), batch=1, sequence=1).batch(-1)
