"""The translation unit: the texts of several kernels, each in a namespace of its own."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

from softgen.source.render import Source

# `extern __shared__ alignas(16) T name[];` cannot be a macro's work: `static` and `extern` exclude
# each other. It is the one declaration that is not compiled as it was written.
_DYNAMIC = re.compile(
    r"extern\s+__shared__\s+(?:alignas\([^)]*\)\s*|__align__\([^)]*\)\s*)?"
    r"(?P<type>[\w:<> ]+?)\s+(?P<name>\w+)\s*\[\s*\]\s*;"
)

_STATIC = re.compile(r"(?<!extern )__shared__\b[^;{]*;")

HEADERS = """\
#include "simt.h"
#include <cuda_bf16.h>
#include <cuda_fp16.h>
"""

# Clang copies a struct by a call of memcpy or memmove, where GCC loads and stores it: the assembler
# turns those of the kernels, and of nothing else, into calls that the emulator sees.
_COPIES = """\
asm(".set memcpy, simt_memcpy\\n.set memmove, simt_memcpy\\n.set memset, simt_memset");
"""

# The linker defines the bounds of a section whose name is a C identifier; weak, because a kernel
# may have no shared memory and then there is no section.
_KERNEL = """\
extern "C" {{
extern unsigned char __start_simt_shared_{i}[] __attribute__((weak));
extern unsigned char __stop_simt_shared_{i}[] __attribute__((weak));
}}
#define SIMT_SECTION "simt_shared_{i}"
#define {symbol} simt_kernel_{i}
namespace unit_{i} {{
namespace {{
#line 1 "{name}.cu"
{text}
}}
}}
#undef {symbol}
#undef SIMT_SECTION
"""

_ROW = (
    "    {{simt::Call<&unit_{i}::simt_kernel_{i}>::run, "
    "simt::Call<&unit_{i}::simt_kernel_{i}>::kTakesWorkspace, "
    "__start_simt_shared_{i}, __stop_simt_shared_{i}}},\n"
)


def unit_text(sources: Sequence[Source]) -> str:
    """Return the C++ text that defines all `sources` and the table the host program reads."""
    kernels = "".join(
        _KERNEL.format(i=i, symbol=source.symbol, name=source.name, text=_readable(source.text))
        for i, source in enumerate(sources)
    )
    rows = "".join(_ROW.format(i=i) for i in range(len(sources)))
    table = (
        '#line 1 "unit.cpp"\n'
        "extern const simt::Kernel simt_kernels[];\n"
        f"const simt::Kernel simt_kernels[] = {{\n{rows}}};\n"
    )
    return HEADERS + _COPIES + kernels + table


def _readable(text: str) -> str:
    text = _DYNAMIC.sub(r"auto& \g<name> = simt::dynamic_shared<\g<type>>();", text)
    number = itertools.count()
    return _STATIC.sub(lambda found: f"{found[0]} SIMT_GAP(simt_gap_{next(number)});", text)
