"""GrowingLayer: a layer of transformers' DynamicCache that grows in place, in memory for up to twice as many rows."""
from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers.cache_utils import DynamicLayer

LEAST = 256  # rows of memory


class GrowingLayer(DynamicLayer):
    """keys and values are the first rows of this memory, so kernels for all of its rows read them in place."""

    keys: Tensor
    values: Tensor
    memory: tuple[Tensor, ...] = ()

    def has_room(self, rows: int) -> bool:
        """Whether so many fit, and keys and values still are in this memory: others may have replaced them."""
        return bool(self.memory) and rows <= self.memory[0].shape[2] and all(
            tensor.data_ptr() == memory.data_ptr() and tensor.stride() == memory.stride()
            for tensor, memory in zip((self.keys, self.values), self.memory))

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        new, rows = (key_states, value_states), self.get_seq_length()
        whole = rows + key_states.shape[2]
        if not self.has_room(whole):
            places = max(LEAST, 1 << (whole - 1).bit_length())
            memory = tuple(states.new_empty(*states.shape[:2], places, states.shape[3]) for states in new)
            for into, old in zip(memory, (self.keys, self.values) if rows else ()):
                into[:, :, :rows] = old
            self.memory = memory
        for into, states in zip(self.memory, new):
            into[:, :, rows:whole] = states
        self.keys, self.values = (memory[:, :, :whole] for memory in self.memory)
        return self.keys, self.values
