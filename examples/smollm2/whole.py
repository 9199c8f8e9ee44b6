"""SmolLM2 as one C program (docs/whole.md): examples/generate writes numbers of tokens, and Python their text."""
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def build(mhagen, gguf, folder, isa, weights, room):
    """The program and its file of weights. In f16 the table of words takes half as much and changes no token of the
    answer; int8 changes one of 240."""
    keys = [f"isa={isa}", "seq=1,64", f"seq_kv={room}", *([] if weights == "f32" else [f"weight_dtype={weights}"])]
    subprocess.run([mhagen, "model", gguf.path, "--whole", "--embeddings", "f16", *keys, "-o", folder, "--quiet",
                    "--force"], check=True)
    sources = [path for path in folder.glob("*.c") if not path.name.startswith(".")]
    subprocess.run(["cc", "-O2", "-I", folder, ROOT / "examples/generate/generate.c", *sources, "-lpthread",
                    "-o", folder / "generate"], check=True)
    return [folder / "generate", folder / "model.packed"]


def write(program, gguf, prompt, count):
    """The tokens behind a prompt, each the likeliest, which are printed as they come; and what the program says."""
    ids = []
    with subprocess.Popen([*program, str(count), str(gguf.end)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True) as child:
        child.stdin.write(" ".join(map(str, prompt)))
        child.stdin.close()
        for line in child.stdout:
            ids.append(int(line))
            if ids[-1] != gguf.end:
                print(gguf.text(ids)[len(gguf.text(ids[:-1])):], end="", flush=True)
        said = child.stderr.read()
    assert child.returncode == 0, said
    print()
    return ids, ", ".join(said.split("\n")).strip(", ")


def compare(expected, prompt, ids, weights):
    """Whether the reference writes the same tokens, which is asked for in float32 alone."""
    theirs, kind = expected(prompt, ids)
    same = int((theirs.argmax(-1) == ids).sum())
    print(f"{same} of {len(ids)} tokens are those of {kind}")
    return same == len(ids) or weights != "f32"
