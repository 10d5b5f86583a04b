"""Everyday code, watched: each example writes its tree to stderr below a line with its name."""

# ruff: noqa: RET504, B007

import asyncio
import contextlib
import sys
import threading
from dataclasses import dataclass

import numpy as np
import torch

from tensortap.compat.ttracker import auto_diff, var_tracker

EXAMPLES = {}


def example(function):
    EXAMPLES[function.__name__] = function
    return function


class Reader:
    def read(self, clip_total_frames, start_frame_idx=0):
        video = np.zeros((clip_total_frames, 6, 9, 3), np.uint8)
        video = torch.from_numpy(video)
        video = video.permute(0, 3, 1, 2)
        return self.resize(video[start_frame_idx:])

    def resize(self, video):
        video = torch.nn.functional.interpolate(video.float(), (3, 4))
        video = video.transpose(0, 1)
        return video


class T2VDataset:
    def __init__(self):
        self.reader = Reader()

    def __getitem__(self, index):
        return self.get_merge_data([{}, {}, {}, {}], index)

    @auto_diff
    def get_merge_data(self, examples, index):
        sample = {"path": f"{index}.mp4", "frames": 7, "fps": 24}
        frame_indice = list(range(73))
        return self.reader.read(sample["frames"] + len(frame_indice) - 73)


@example
def readme_auto_diff():
    T2VDataset()[113]


@var_tracker("video")
def transform_video(frames, clip_total_frames):
    scale = 2
    for start in (0, 1):
        video = Reader().read(clip_total_frames, start)
        mask = video > scale
    return mask


@example
def readme_var_tracker():
    transform_video([1, 2], 5)


@example
def bindings():
    @auto_diff
    def bind(first, /, second=2, *rest, third=3, **options):
        a = b = first + 1
        c, (d, *e) = 1, (2, 3, 4)
        a += 1
        if (n := len(rest)) > 1:
            del c
        d: float = 0.5
        return a, b, d, e, n

    bind(1, 2, 5, 6, third=7, name="x")


class Scaler:
    factor = 3

    def __init__(self, offset):
        self.offset = offset
        self.cache = None

    @auto_diff
    def scale(self, x):
        self.cache = x * self.factor + self.offset
        return self.cache

    @classmethod
    @auto_diff
    def make(cls, offset):
        return cls(offset)

    @staticmethod
    @auto_diff
    def halve(x):
        return x / 2

    @property
    @auto_diff
    def total(self):
        return self.cache.sum()


@example
def methods():
    scaler = Scaler.make(1)
    scaler.scale(torch.ones(3))
    Scaler.halve(torch.ones(2))
    scaler.total  # noqa: B018


@auto_diff
class Counter:
    def __init__(self, start):
        self.count = start

    def up(self, by):
        self.count += by
        return self.count


@example
def decorated_class():
    Counter(3).up(2)


@example
def generator():
    @auto_diff
    def batches(data, size):
        for start in range(0, len(data), size):
            batch = data[start : start + size]
            yield batch
        return "done"

    for batch in batches(torch.arange(5.0), 2):
        batch.sum()


@example
def coroutine():
    async def fetch(n):
        await asyncio.sleep(0)
        value = torch.ones(n)
        return value

    @auto_diff
    async def gather(n):
        first = await fetch(n)
        second = await fetch(n + 1)
        return first.sum() + second.sum()

    asyncio.run(gather(2))


@example
def two_tasks():
    @auto_diff
    async def work(name, turns):
        for turn in range(turns):
            await asyncio.sleep(0)
            x = torch.ones(turn + 1)
        return x

    async def both():
        await asyncio.gather(work("a", 2), work("b", 2))

    asyncio.run(both())


@example
def asynchronous_generator():
    @auto_diff
    async def numbers(n):
        for i in range(n):
            await asyncio.sleep(0)
            yield i * 2

    async def consume():
        async for _ in numbers(2):
            pass

    asyncio.run(consume())


@example
def recursion():
    @auto_diff
    def depth(n):
        below = 0 if n == 0 else depth(n - 1)
        return below + 1

    depth(2)


@example
def exceptions():
    def check(x):
        if x.dim() != 2:
            raise ValueError(f"want a matrix, not {x.dim()} dimensions")
        return x

    @auto_diff
    def careful(x):
        try:
            y = check(x)
        except ValueError:
            y = check(x[None])
        return y

    @auto_diff
    def careless(x):
        return check(x)

    careful(torch.ones(2))
    with contextlib.suppress(ValueError):
        careless(torch.ones(2))


@example
def comprehensions():
    def double(x):
        return x * 2

    @auto_diff
    def all_doubled(items):
        doubled = [double(item) for item in items]
        total = sum(map(lambda item: item, doubled))  # noqa: C417
        by_size = {len(str(item)): item for item in doubled}
        return total, by_size

    all_doubled([1, 20])


@example
def long_loop():
    @auto_diff
    def iterate(x, n):
        for i in range(n):
            x = x * 0.5
            norm = x.norm()  # noqa: F841
        return x

    iterate(torch.ones(4), 40)


@example
def training():
    model = torch.nn.Linear(2, 1)
    with torch.no_grad():
        model.weight.fill_(0.5), model.bias.zero_()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    @auto_diff(stats=True)
    def step(model, optimizer, x, target):
        optimizer.zero_grad()
        loss = (model(x) - target).square().mean()
        loss.backward()
        grad = model.weight.grad
        optimizer.step()
        return loss.item(), grad

    step(model, optimizer, torch.ones(3, 2), torch.zeros(3, 1))


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.project = torch.nn.Linear(4, 4)
        self.norm = Norm()

    @auto_diff
    def forward(self, x, mask=None):
        h = self.project(x)
        h = self.norm(h)
        return x + h


class Norm(torch.nn.Module):
    def forward(self, x):
        scale = x.square().mean(-1, keepdim=True).add(1e-6).rsqrt()
        return x * scale


@example
def module():
    Block()(torch.ones(2, 4))


@example
def in_place():
    @auto_diff
    def change(x, items):
        x.mul_(2)
        view = x[0]
        view.zero_()
        x.data.add_(1)
        items.append(3)
        items[0] = -1
        grid = np.zeros((2, 2))
        grid[0] = 1.0
        return x

    change(torch.ones(2, 2), [1, 2])


@dataclass
class Batch:
    video: torch.Tensor
    mask: torch.Tensor
    names: list


@example
def structures():
    @auto_diff
    def collate(parts):
        batch = {"video": torch.stack(parts), "meta": {"n": len(parts)}}
        batch["mask"] = batch["video"] > 0
        made = Batch(batch["video"], batch["mask"], ["a", "b"])
        made.mask = made.mask.float()
        return made

    collate([torch.ones(2), torch.zeros(2)])


@example
def array_pipeline():
    @auto_diff
    def prepare(image):
        image = image.astype(np.float32) / 255
        image = (image - image.mean()) / (image.std() + 1e-6)
        tensor = torch.from_numpy(image)
        tensor = tensor.to(torch.bfloat16)
        return tensor.unsqueeze(0)

    prepare(np.arange(12, dtype=np.uint8).reshape(3, 4))


@example
def not_finite():
    @auto_diff
    def divide(x):
        y = 1 / x
        z = y - y
        mean = z.mean().item()
        return mean

    divide(torch.tensor([0.0, 1.0, 2.0]))


@example
def with_and_finally():
    @auto_diff
    def guarded(x):
        with torch.no_grad():
            try:
                y = x + 1
            finally:
                state = "left"
        return y, state

    guarded(torch.ones(1))


@example
def closure():
    @auto_diff
    def outer(n):
        total = 0

        def add(k):
            nonlocal total
            total += k
            return total

        for k in range(n):
            add(k)
        return total

    outer(2)


@example
def parts_of_targets():
    @var_tracker("batch.*.mask", "x.shape", "m*", auto_diff=False)
    def work(x):
        batch = [{"mask": torch.ones(2), "other": 1}]
        m1 = x.sum()
        x = x.reshape(-1)
        unrelated = 5
        batch[0]["mask"] = torch.zeros(3)
        return helper(x) + unrelated + m1

    def helper(y):
        mean = y.mean()
        return quiet(mean)

    def quiet(z):
        w = z + 1
        return w

    work(torch.ones(2, 2))


@example
def threads():
    @auto_diff
    def work(x):
        y = x + 1
        return y

    for n in (1, 2):
        thread = threading.Thread(target=work, args=(torch.ones(n),), name=f"worker {n}")
        thread.start()
        thread.join()


@example
def decorated_inside_decorated():
    @auto_diff
    def inner(x):
        y = x + 1
        return y

    @auto_diff(max_depth=1)
    def other(x):
        return inner(x)

    @auto_diff
    def outer(x):
        return inner(x) * 2

    outer(1)
    other(2)


if __name__ == "__main__":
    for name in sys.argv[1:] or EXAMPLES:
        print(f"== {name}", file=sys.stderr, flush=True)
        EXAMPLES[name]()
