"""Dropout of rows: attention with dropout is the model's own attention apart from what it drops."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from softprompts.backbone.dropout import RowDropout


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32])
def test_a_query_that_attends_to_nothing_gives_no_nan(dtype: torch.dtype) -> None:
    """As a pad's query does where a sliding window has left all of the row's own tokens."""
    torch.manual_seed(0)
    states = torch.randn(2, 1, 4, 8, requires_grad=True)
    mask = torch.ones(2, 1, 4, 4, dtype=torch.bool).tril()
    mask[0, 0, 3] = False
    given = mask if dtype == torch.bool else torch.zeros(mask.shape).masked_fill(~mask, -torch.inf)
    plain = scaled_dot_product_attention(states, states, states, given)
    with RowDropout(torch.zeros(2), torch.tensor([1, 2])):
        ours = scaled_dot_product_attention(states, states, states, given, dropout_p=0.5)
    torch.testing.assert_close(ours[mask.any(-1)], plain[mask.any(-1)])
    ours[mask.any(-1)].sum().backward()  # type: ignore[no-untyped-call]
    assert states.grad is not None
    assert bool(torch.isfinite(states.grad).all())
