"""Items that were asked for lately, admitted once: checking them is a good part of what an answer costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from api.admission import admit_item
from api.schemas import EncodeItem
from epd.config import ModelConfig
from epd.contracts.card import EncoderCard
from epd.contracts.media import Item, ItemOptions, Modality
from epd.lookup import Needs, needs_of
from epd.recent import Recent
from epd.settings import Settings

#: Items of a model whose admission and whose needs are kept, some 1 KB each beside their text.
LIMIT = 4096
#: Characters of a URL or of inline data beyond which an item is admitted anew each time: all texts together
#: take 16 MB, or four times that where each has a character beyond the basic plane.
MAX_TEXT = 4096

_Given = tuple[ItemOptions, frozenset[str]] | None
_Asked = tuple[Modality, str | None, str | None, str | None, _Given]


@dataclass(frozen=True, slots=True)
class ModelMemory:
    """What follows of an item from a model, its cards and the settings: its admission, and its needs."""

    model: ModelConfig
    cards: Mapping[Modality, EncoderCard]
    settings: Settings
    _items: Recent[_Asked, Item] = field(default_factory=lambda: Recent(LIMIT))
    _needs: Recent[tuple[str, Modality, _Given], Needs] = field(default_factory=lambda: Recent(LIMIT))

    def item(self, index: int, asked: EncodeItem) -> Item:
        """As ``admit_item`` admits it; the media id of inline data is its digest."""
        question = (asked.type, asked.url, asked.data, asked.media_id, _given(asked.options))
        item = self._items.get(question)
        if item is None:
            item, _ = admit_item(index, asked, model=self.model, cards=self.cards, settings=self.settings)
            if len(asked.url or asked.data or "") <= MAX_TEXT:
                self._items.put(question, item)
        if item.index == index:
            return item
        return Item(index=index, modality=item.modality, source=item.source, options=item.options)

    def needs(self, item: Item, digest: str) -> Needs:
        """As ``needs_of``."""
        question = (digest, item.modality, _given(item.options))
        needs = self._needs.get(question)
        if needs is None:
            needs = needs_of(item, digest, model=self.model, cards=self.cards)
            self._needs.put(question, needs)
        return needs


def _given(options: ItemOptions) -> _Given:
    """What a caller gave: an option given at its default is refused where it does not apply."""
    return (options, frozenset(options.model_fields_set)) if options.model_fields_set else None


class ItemMemory:
    """A ``ModelMemory`` for each model of the config; one whose cards have changed is begun anew."""

    def __init__(self, settings: Settings) -> None:
        """Nothing is kept yet."""
        self._settings = settings
        self._models: dict[str, ModelMemory] = {}

    def of(self, name: str, model: ModelConfig, cards: Mapping[Modality, EncoderCard]) -> ModelMemory:
        """The memory of the model that has this name in the config."""
        known = self._models.get(name)
        if known is None or known.cards != cards:
            known = self._models[name] = ModelMemory(model, cards, self._settings)
        return known
