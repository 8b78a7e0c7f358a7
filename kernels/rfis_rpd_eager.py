"""Tiles of RFIS and RPD in plain torch operations: any device, any float type, any size of the contributions.

c is a product of depth 4: (q~, -q) with (k~, k) for RPD, (q~, 0) with (k~, 0) for RFIS, where ~ means rotated, so that
removing a frequency and removing its rotation are two kinds of group in one tile. With t = (p' - p)/(p' + p),
JS(p, p') = 1/2 sum_j [p_j log(1 - t_j) + p'_j log(1 + t_j)].
"""

from __future__ import annotations

import torch
from torch import Tensor

from .rfis_rpd_reference import LN2, softcapped_difference

TILE_ELEMENTS = 1_000_000


def eager_tile(
    a: Tensor, b: Tensor, log_p: Tensor, logits: Tensor | None = None, softcap: float | None = None
) -> Tensor:
    """JS/ln 2 [groups, rows] by the softmax form with log1p(t): any float type, any device, any size of c.

    ``a`` [groups, 4, rows], ``b`` [groups, 4, keys], ``log_p`` [rows, keys] (-inf at invisible keys): a key whose
    probability underflows may still win once c is removed. With ``softcap`` also ``logits`` before the cap.
    """
    c = torch.bmm(a.transpose(1, 2), b)
    if softcap is not None:
        c = softcapped_difference(logits, c, softcap)
    p = log_p.exp()
    changed = torch.softmax(torch.sub(log_p, c, out=c), dim=-1)
    info = torch.finfo(p.dtype)
    total = torch.add(changed, p, out=c).clamp_min_(info.tiny)
    t = torch.sub(changed, p).div_(total).clamp_(-1.0 + info.eps, 1.0 - info.eps)
    upper = torch.log1p(t, out=total).mul_(changed).sum(dim=-1)
    lower = t.neg_().log1p_().mul_(p).sum(dim=-1)
    return (upper + lower).mul_(0.5 / LN2).clamp_min_(0.0)
