"""The same encoder as one would write it for TransformerLens: a HookPoint after each module."""

from torch import Tensor
from transformer_lens import HookedRootModule  # type: ignore[import-not-found]
from transformer_lens.hook_points import HookPoint  # type: ignore[import-not-found]

from encoder import Attention, Block, Encoder, Feed


class LensAttention(Attention):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__(width, heads)
        self.hook_q, self.hook_k, self.hook_v, self.hook_out = (HookPoint() for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.hook_q(self.q(x)), self.hook_k(self.k(x)), self.hook_v(self.v(x))
        out: Tensor = self.hook_out(self.out(self.mix(q, k, v)))
        return out


class LensFeed(Feed):
    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.hook_up, self.hook_act, self.hook_down = (HookPoint() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.hook_down(self.down(self.hook_act(self.act(self.hook_up(self.up(x))))))
        return out


class LensBlock(Block):
    attention = LensAttention
    feed = LensFeed

    def __init__(self, width: int, heads: int) -> None:
        super().__init__(width, heads)
        self.hook_norm1, self.hook_attn, self.hook_norm2, self.hook_mlp = (HookPoint() for _ in range(4))
        self.hook_block = HookPoint()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.hook_attn(self.attn(self.hook_norm1(self.norm1(x))))
        out: Tensor = self.hook_block(x + self.hook_mlp(self.mlp(self.hook_norm2(self.norm2(x)))))
        return out


class LensEncoder(Encoder, HookedRootModule):  # type: ignore[misc]
    block = LensBlock

    def __init__(self, layers: int, width: int, heads: int) -> None:
        super().__init__(layers, width, heads)
        self.hook_embed, self.hook_norm, self.hook_result = (HookPoint() for _ in range(3))
        self.setup()  # type: ignore[operator]

    def forward(self, ids: Tensor) -> Tensor:
        x = self.hook_embed(self.embed(ids))
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.hook_result(self.hook_norm(self.norm(x)))
        return out
