"""Prints what build/mhagen is made of besides its own sources, as CycloneDX: `ninja sbom` keeps it in
build/mhagen.cdx.json. What is embedded the build knows, what is linked the linker; the packages are dpkg's.
"""
import hashlib
import json
import os
import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent
MIT = "Permission is hereby granted, free of charge"


def output(*command):
    result = subprocess.run(command, text=True, capture_output=True)
    return result.stdout if result.returncode == 0 else ""


def files():
    """(how it is in the program, path) of every file that is not ours."""
    embedded = re.findall(r"(?<= )/\S+", (ROOT / "build/mhagen_files.c.d").read_text())
    linked = re.search(r"^lua = (.*)$", (ROOT / "build.ninja").read_text(), re.M)[1]
    libraries = [output(*os.environ.get("CC", "cc").split(), f"-print-file-name={name}").strip()
                 for name in re.findall(r"-l:(\S+)", linked)]
    loaded = re.findall(r"=> (/\S+)", output("ldd", ROOT / "build/mhagen"))
    return [*(("embedded", path) for path in embedded), *(("static", path) for path in libraries),
            *(("dynamic", path) for path in loaded)]


def package_of(path):
    """The package's name; Debian knows a file by its path of old, too, without /usr."""
    real = os.path.realpath(path)
    for known in path, real, real.removeprefix("/usr"):
        if owner := output("dpkg", "-S", known):
            return owner.split(":")[0]
    raise SystemExit(f"sbom: no package has {path}")


def component(package, system, found):
    version, architecture = output("dpkg-query", "-W", "-f", "${Version} ${Architecture}\n",
                                   package).splitlines()[0].split()
    rights = pathlib.Path(f"/usr/share/doc/{package}/copyright")
    mit = rights.exists() and MIT in " ".join(rights.read_text(errors="replace").split())
    purl = f"pkg:deb/{system}/{package}@{version.replace('+', '%2B').replace('~', '%7E')}?arch={architecture}"
    return {
        "type": "library", "bom-ref": purl, "name": package, "version": version, "purl": purl,
        **({"licenses": [{"license": {"id": "MIT"}}]} if mit else {}),
        "properties": [{"name": f"mhagen:{how}", "value": pathlib.Path(path).name + " sha256:" +
                        hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()} for how, path in found],
    }


def main():
    packages = {}
    for how, path in files():
        packages.setdefault(package_of(path), []).append((how, path))
    release = pathlib.Path("/etc/os-release").read_text()
    system = re.search(r'^ID="?(\w+)', release, re.M)[1]
    components = [component(name, system, found) for name, found in sorted(packages.items())]
    version = re.search(r'"(.*)"', (ROOT / "gen/base/version.lua").read_text())[1]
    program = {"type": "application", "bom-ref": "mhagen", "name": "mhagen", "version": version,
               "licenses": [{"license": {"id": "Apache-2.0"}}], "hashes": [
        {"alg": "SHA-256", "content": hashlib.sha256((ROOT / "build/mhagen").read_bytes()).hexdigest()}]}
    print(json.dumps({
        "bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1, "metadata": {"component": program},
        "components": components,
        "dependencies": [{"ref": "mhagen", "dependsOn": [one["bom-ref"] for one in components]}]}, indent=1))


if __name__ == "__main__":
    main()
