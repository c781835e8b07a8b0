"""How a check compiles what it runs for a moment only: quickly rather than well."""

from typing import Any

# What XLA makes of a program is the same; LLVM then makes plain machine code of it. That takes
# about half of the compiling, and runs a few times slower.
QUICKLY: dict[str, Any] = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
}
