"""A module with some of its tensors exchanged, beside the module as it was: the two share everything else.

`torch.func.functional_call` puts the tensors into the module itself for the length of a call, so that no other thread
can use it meanwhile. Here only the modules on the way to an exchanged tensor are new, and they are as good as free.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn


def with_tensors(module: nn.Module, tensors: Mapping[str, Tensor]) -> nn.Module:
    """`tensors` by the names of `module.named_parameters()`. For inference: hooks and training are not considered.

    Raises KeyError for a name that isn't a parameter's.
    """
    twin = module.__new__(type(module))
    twin.__dict__ = module.__dict__ | {"_parameters": dict(module._parameters), "_modules": dict(module._modules)}
    below: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        head, _, rest = name.partition(".")
        if rest:
            below.setdefault(head, {})[rest] = tensor
        elif head in twin._parameters:
            twin._parameters[head] = tensor  # type: ignore[assignment]
        else:
            raise KeyError(f"{type(module).__name__} has no parameter {head!r}")
    for head, own in below.items():
        child = twin._modules.get(head)
        if child is None:
            raise KeyError(f"{type(module).__name__} has no module {head!r}")
        twin._modules[head] = with_tensors(child, own)
    return twin
