"""Files of PyTorch: what is read and written without it, and what is refused without running any of it."""

from __future__ import annotations

import copy
import os
import pickle
import struct
import time
import zipfile
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest

from jaxrl.artifacts.files import ArtifactError
from jaxrl.torch.reading import read_torch_file
from jaxrl.torch.writing import Ordered, write_torch_file

THEIRS = Path(__file__).parent / "torch_files" / "Countdown" / "checkpoint.pt"


def archive(path: Path, data: bytes, files: dict[str, bytes] | None = None, compression=zipfile.ZIP_STORED) -> Path:
    """A zip as PyTorch writes it, around any pickle."""
    with zipfile.ZipFile(path, "w", compression) as zipped:
        for name, content in {"data.pkl": data, "byteorder": b"little", "version": b"3\n", **(files or {})}.items():
            zipped.writestr(f"a/{name}", content)
    return path


def tensor(
    kind: str = "FloatStorage", key: str = "0", size: int = 2, offset: int = 0, shape=(2,), stride=(1,)
) -> bytes:
    """The pickle of one tensor, as PyTorch writes it."""

    def text(value: str) -> bytes:
        return b"X" + struct.pack("<I", len(value)) + value.encode()

    def whole(value: int) -> bytes:
        return b"J" + struct.pack("<i", value)

    def wholes(values) -> bytes:
        return b"(" + b"".join(map(whole, values)) + b"t"

    storage = b"(" + text("storage") + f"ctorch\n{kind}\n".encode() + text(key) + text("cpu") + whole(size) + b"tQ"
    made = b"(" + storage + whole(offset) + wholes(shape) + wholes(stride) + b"\x89ccollections\nOrderedDict\n)Rt"
    return b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n" + made + b"R."


def test_what_pytorch_wrote_is_read():
    contents = read_torch_file(THEIRS)
    assert list(contents) == ["Policy", "global_step", "Optimizer:value_optimizer", "Optimizer:critic"]
    assert contents["global_step"]["_GlobalSteps__global_step"].tolist() == [1000]
    policy = contents["Policy"]
    assert policy["network_body._body_endoder.seq_layers.0.weight"].shape == (4, 5)
    assert policy["discrete_act_size_vector"].tolist() == [[3.0]]
    normalizer = "network_body.observation_encoder.processors.0.normalizer."
    assert policy[normalizer + "normalization_steps"].tolist() == 41
    np.testing.assert_allclose(policy[normalizer + "running_mean"][:2], [0.9921025, 1.462435], rtol=1e-6)
    group = contents["Optimizer:value_optimizer"]["param_groups"][0]
    assert (group["betas"], group["eps"], group["amsgrad"], group["fused"]) == ((0.9, 0.999), 1e-8, False, None)
    assert group["params"] == list(range(17))


def test_written_and_read_again_all_is_the_same(tmp_path):
    shared = np.arange(6, dtype=np.float32).reshape(2, 3)
    given = {
        "module": Ordered({"a": shared, "second name": shared, "none": np.zeros((1, 0), np.float32)}),
        "numbers": [1, -1, 2**31, -(2**40), True, False, None, 0.5, "text", (), (1, (2, 3))],
        7: {"whole": np.asarray(3, np.int64), "turned": np.asfortranarray(shared), "yes": np.asarray([True])},
    }
    write_torch_file(tmp_path / "a.pt", given)
    found = read_torch_file(tmp_path / "a.pt")
    assert found["numbers"] == given["numbers"]
    for name, array in {**given["module"], **given[7]}.items():
        read = {**found["module"], **found[7]}[name]
        assert (read.dtype, read.shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(read, array)
    with zipfile.ZipFile(tmp_path / "a.pt") as zipped:
        assert sum("/data/" in name for name in zipped.namelist()) == 5, "an array with two names is written once"
    assert [path.name for path in tmp_path.iterdir()] == ["a.pt"]


def test_pytorch_reads_what_is_written(tmp_path):
    torch = pytest.importorskip("torch")
    write_torch_file(tmp_path / "a.pt", {"m": Ordered({"w": np.eye(3, dtype=np.float32)}), "n": [1, 2.5]})
    found = torch.load(tmp_path / "a.pt", weights_only=True)
    assert torch.equal(found["m"]["w"], torch.eye(3))
    assert found["n"] == [1, 2.5]


def test_an_array_may_lie_turned_in_its_bytes(tmp_path):
    bytes_of = np.arange(6, dtype=">f4").tobytes()
    files = {"data/0": bytes_of, "byteorder": b"big"}
    path = archive(tmp_path / "a.pt", tensor(size=6, offset=1, shape=(2, 2), stride=(1, 2)), files)
    assert read_torch_file(path).tolist() == [[1.0, 3.0], [2.0, 4.0]]


class _Attack:
    def __init__(self, function, *arguments) -> None:
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_that_would_run_a_command_is_refused_and_runs_nothing(tmp_path, protocol):
    touched = tmp_path / "touched"
    data = pickle.dumps({"Policy": _Attack(os.system, f"touch {touched}")}, protocol)
    pickle.loads(data)
    assert touched.exists(), "Python's own reader runs it"
    touched.unlink()
    path = archive(tmp_path / "a.pt", data)
    with pytest.raises(ArtifactError, match=r"a\.pt: asks for .*, which is not an array; nothing of it was run"):
        read_torch_file(path)
    assert not touched.exists()


REFUSED = {
    "a name": (b"cposix\nsystem\n.", "posix.system"),
    "a name in two texts": (b"\x80\x04\x8c\x05posix\x8c\x06system\x93.", "posix.system"),
    "a name below one that is known": (b"ctorch._utils\n_rebuild_tensor_v2.__globals__\n.", "__globals__"),
    "a storage of another module": (b"cos\nFloatStorage\n.", "os.FloatStorage"),
    "an object of a class": (b"(cposix\nsystem\no.", "posix.system"),
    "an instance": (b"(iposix\nsystem\n.", "the operation INST"),
    "a new object": (b"ccollections\nOrderedDict\n)\x81.", "the operation NEWOBJ"),
    "an extension": (b"\x82\x01.", "the operation EXT1"),
    "attributes of a name": (b"ctorch._utils\n_rebuild_tensor_v2\n}b.", "attributes of a Name"),
    "a call of a text": (b"X\x01\x00\x00\x00a)R.", "a call of str"),
    "a storage called": (b"ctorch\nFloatStorage\n)R.", "a call of torch.FloatStorage"),
    "numbers that numpy lacks": (tensor("BFloat16Storage"), "torch.BFloat16Storage"),
    "another persistent id": (b"(X\x01\x00\x00\x00aNNNNtQ.", "'a'"),
}


@pytest.mark.parametrize(("data", "name"), REFUSED.values(), ids=REFUSED)
def test_whatever_is_no_array_is_named(tmp_path, data, name):
    with pytest.raises(ArtifactError, match="which is not an array") as caught:
        read_torch_file(archive(tmp_path / "a.pt", data, {"data/0": bytes(8)}))
    assert name in str(caught.value)


NESTED = b"}" + b"X\x01\x00\x00\x00a}" * 9 + b"s" * 9 + b"."
DAMAGED = {
    "no end": b"}",
    "nothing": b".",
    "no such memo": b"h\x01.",
    "no mark": b"t.",
    "a key without a value": b"}(K\x01u.",
    "an item of a number": b"K\x01K\x02K\x03s.",
    "no opcode": b"\xff.",
    "beyond its bytes": tensor(shape=(3,)),
    "last number beyond its bytes": tensor(shape=(2,), stride=(5,)),
    "repeated without end": tensor(shape=(2**30, 2**30), stride=(0, 0)),
    "before its bytes": tensor(offset=-1),
    "bytes that are not there": tensor(key="9"),
    "bytes elsewhere": tensor(key="../../version"),
    "a dictionary in itself": b"}q\x00X\x01\x00\x00\x00ah\x00s.",
    "too deep": NESTED,
}


@pytest.mark.parametrize("data", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_description_is_one_message(tmp_path, data):
    path = archive(tmp_path / "a.pt", data, {"data/0": bytes(8)})
    with pytest.raises(ArtifactError, match=r"a\.pt: the file is damaged \(.*ML-Agents keeps several"):
        read_torch_file(path)


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value)) + value.encode()


DOUBLED = b")" + b"".join(b"q" + bytes([i]) + b"h" + bytes([i]) + b"\x86" for i in range(60))
"""A tuple that holds a tuple twice, which does so in turn: 2 ** 60 values in 300 bytes."""
HOSTILE = {
    "a key that is hashed for ever": b"\x80\x02}" + DOUBLED + b"K\x01s.",
    "a value that is walked for ever": b"\x80\x02}" + text("Policy") + DOUBLED + b"s.",
    "bytes whose name is written for ever": b"\x80\x02(" + text("storage") + b"ctorch\nFloatStorage\n" + DOUBLED
    + text("cpu") + b"K\x02tQ.",
    "a kind that is written for ever": b"\x80\x02(" + DOUBLED + DOUBLED + text("0") + text("cpu") + b"K\x02tQ.",
    "a name that is written for ever": b"\x80\x04" + DOUBLED + text("x") + b"\x93.",
    "an ordered dictionary of such keys": b"\x80\x02ccollections\nOrderedDict\n](" + DOUBLED + b"K\x01\x86e\x85R.",
    "lists in lists, twenty times each": b"\x80\x02" + b"".join(
        b"]q" + bytes([i]) + (b"(" + (b"h" + bytes([i - 1])) * 20 + b"e" if i else b"") for i in range(8)) + b".",
    "a shape of ten thousand dimensions": tensor(shape=(1,) * 10_000, stride=(1,) * 10_000),
    "a number of a thousand digits": b"\x80\x02\x8b" + struct.pack("<i", 5000) + bytes(4999) + b"\x01.",
    "a dictionary copied again and again": b"\x80\x02ccollections\nOrderedDict\n(](" + b"".join(
        text(str(i)) + b"K\x01\x86" for i in range(20_000)) + b"etq\x01R0"
    + b"ccollections\nOrderedDict\nh\x01R0" * 2000 + b".",
}  # fmt: skip


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
def test_a_description_that_would_never_end_is_refused_at_once(tmp_path, data):
    begin = time.process_time()
    with pytest.raises(ArtifactError):
        read_torch_file(archive(tmp_path / "a.pt", data, {"data/0": bytes(8)}))
    assert time.process_time() - begin < 10.0


def test_arrays_are_no_more_than_the_bytes_that_are_there(tmp_path):
    """One array under many names, and parts of the zip that lie in each other."""
    one = tensor(size=1000, shape=(1000,))[2:-1]
    with pytest.raises(ArtifactError, match=r"arrays of 17,000 numbers, many times what the file holds"):
        read_torch_file(archive(tmp_path / "a.pt", b"\x80\x02](" + one * 40 + b"e.", {"data/0": bytes(4000)}))
    keys = b"".join(tensor(key=str(i), size=1000, shape=(1000,))[2:-1] for i in range(4))
    path = archive(tmp_path / "b.pt", b"\x80\x02](" + keys + b"e.", {f"data/{i}": bytes(4000) for i in range(4)})
    assert len(read_torch_file(path)) == 4
    crowded = tmp_path / "c.pt"
    with zipfile.ZipFile(crowded, "w") as zipped:
        for name, content in (("data.pkl", b"\x80\x02](" + keys + b"e."), ("data/0", bytes(4000))):
            zipped.writestr(f"a/{name}", content)
        first = zipped.getinfo("a/data/0")
        for i in range(1, 4):
            again = copy.copy(first)
            again.filename = f"a/data/{i}"
            zipped.filelist.append(again)
        zipped._didModify = True
    with pytest.raises(ArtifactError, match=r"lie in each other|differ|verlap"):
        read_torch_file(crowded)


def test_shared_containers_are_not_multiplied(tmp_path):
    level = b"}q%c(X\x01\x00\x00\x00ah%cX\x01\x00\x00\x00bh%cu"
    data = b"}q\x00" + b"".join(level % (i + 1, i, i) for i in range(7)) + b"."
    found = read_torch_file(archive(tmp_path / "a.pt", data))
    assert found["a"] is found["b"]


@pytest.mark.parametrize("cut", [100, 5000, -30])
def test_a_file_that_was_cut_off(tmp_path, cut):
    path = tmp_path / "a.pt"
    path.write_bytes(THEIRS.read_bytes()[:cut])
    with pytest.raises(ArtifactError, match="the file is damaged"):
        read_torch_file(path)


def test_a_byte_that_has_changed(tmp_path):
    content = bytearray(THEIRS.read_bytes())
    content[content.index(b"seq_layers")] ^= 1
    (tmp_path / "a.pt").write_bytes(content)
    with pytest.raises(ArtifactError, match=r"the file is damaged \(.*CRC"):
        read_torch_file(tmp_path / "a.pt")


def test_a_compressed_file_is_none_of_pytorch(tmp_path):
    with pytest.raises(ArtifactError, match=r"damaged.*is compressed, which PyTorch never does"):
        read_torch_file(archive(tmp_path / "a.pt", b"}.", compression=zipfile.ZIP_DEFLATED))


def test_other_files(tmp_path):
    path = tmp_path / "a.pt"
    with pytest.raises(ArtifactError, match=r"a\.pt: cannot be read \(No such file"):
        read_torch_file(path)
    path.write_bytes(pickle.dumps(OrderedDict()))
    with pytest.raises(ArtifactError, match=r"a\.pt: is no file of PyTorch"):
        read_torch_file(path)
    path.write_bytes(b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.")
    with pytest.raises(ArtifactError, match=r"format before 1\.6.*torch\.save\(torch\.load"):
        read_torch_file(path)
    with zipfile.ZipFile(path, "w") as zipped:
        zipped.writestr("word/document.xml", "")
    with pytest.raises(ArtifactError, match=r"is a zip, but none of PyTorch's"):
        read_torch_file(path)
