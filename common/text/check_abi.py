#!/usr/bin/env python3
"""Compares the functions of text_abi.h with those of rust/src/abi.rs; exits 1 where they differ."""
import pathlib
import re

HERE = pathlib.Path(__file__).parent
BASE = {"u8": "uint8_t", "u32": "uint32_t", "i32": "int32_t", "i64": "int64_t", "u64": "uint64_t", "usize": "size_t",
        "bool": "bool", None: "void"}


def c_type(rust: str | None) -> str:
    if rust and rust.startswith("*const "):
        return f"const {c_type(rust[7:])}*"
    if rust and rust.startswith("*mut "):
        return f"{c_type(rust[5:])}*"
    return BASE.get(rust, rust)


def rust_functions() -> dict[str, str]:
    text = (HERE / "rust/src/abi.rs").read_text()
    found = {}
    for name, args, result in re.findall(r'pub unsafe extern "C" fn (\w+)\((.*?)\)(?: -> (\w+))? \{', text, re.S):
        types = [c_type(arg.split(":", 1)[1].strip()) for arg in args.split(",") if ":" in arg]
        found[name] = f"{c_type(result or None)} {name}({', '.join(types)})"
    return found


def header_functions() -> dict[str, str]:
    text = re.sub(r"//[^\n]*", "", (HERE / "text_abi.h").read_text())
    found = {}
    for result, name, args in re.findall(r"^(\w+) (mesh_text_\w+)\((.*?)\);", text, re.S | re.M):
        types = [re.sub(r"\s*\b\w+$", "", " ".join(arg.split())) for arg in args.split(",")]
        found[name] = f"{result} {name}({', '.join(types)})"
    return found


def codes(text: str, pattern: str) -> list[str]:
    return re.findall(pattern, text, re.M)


def main() -> None:
    rust, header = rust_functions(), header_functions()
    differences = [f"rust: {rust.get(n)}\n   C: {header.get(n)}" for n in sorted(rust | header) if rust.get(n) != header.get(n)]
    numbers = codes((HERE / "rust/src/fault.rs").read_text(), r"^    \w+ = (\d),")
    if len(rust) < 10 or numbers != codes((HERE / "text_abi.h").read_text(), r"^  MESH_TEXT_\w+ = (\d),"):
        differences.append("the codes or the pattern of this check")
    if differences:
        raise SystemExit("text_abi.h and abi.rs differ:\n" + "\n".join(differences))
    print(f"{len(rust)} functions agree")


if __name__ == "__main__":
    main()
