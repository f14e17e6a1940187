"""The JSON of the script in pytorch/gloo issue 471."""

from __future__ import annotations

from netbench.importers.tool import Findings, Given, Misread, elements, exact_case, number, strict_json
from netbench.quotes import Quote


class Gloo471:
    """The script of pytorch/gloo issue 471: rank 0's times of send_recv (there and back) or all_gather of float32."""

    name = "gloo-471"

    def recognises(self, text: str) -> bool:
        return text.lstrip().startswith("[") and '"size_bytes"' in text

    def read(self, text: str, given: Given) -> Findings:
        import numpy as np

        from netbench.statistics import describe

        if not isinstance(strict_json(text), list):
            raise Misread(1, "is no list")
        mode = given.the_mode()
        world = given.the_world_size(2 if mode == "send_recv" else None)
        times: dict[int, list[float]] = {}
        lines: dict[int, int] = {}
        for line, sample in elements(text):
            if not isinstance(sample, dict) or sample.keys() != {"size_bytes", "time_s"}:
                raise Misread(line, "a sample is no object of size_bytes and time_s")
            label = int(number(line, "size_bytes", sample["size_bytes"]))
            # It sends whole floats, at least one, whatever its label says.
            tensor_bytes = max(1, label // 4) * 4
            lines.setdefault(tensor_bytes, line)
            seconds = number(line, "time_s", sample["time_s"])
            if seconds == 0:
                raise Misread(line, "time_s is 0, which is no measurement")
            times.setdefault(tensor_bytes, []).append(seconds)
        if not times:
            raise Misread(1, "has no samples")
        quotes = []
        for tensor_bytes, seconds_each in times.items():
            said = describe(np.round(np.array(seconds_each) * 1e9).astype(np.int64))._asdict()
            case = exact_case(lines[tensor_bytes], mode, given.backend or "gloo", 1, world, "float32", tensor_bytes)
            quotes.append(Quote(case=case, **{name: said[name] for name in said if name not in ("low_ns", "high_ns")}))
        return Findings(quotes, "median over the iterations, on rank 0 alone")
