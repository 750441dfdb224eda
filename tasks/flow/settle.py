"""An item whose digest is known: finish what is cached, join the flights of others, claim the rest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from epd.config import ModelConfig
from epd.contracts.embedding import EncoderCard
from epd.contracts.job import PartId, PartRecord, Stage
from epd.contracts.media import Modality
from epd.contracts.messages import Wanted
from epd.lookup import Found, Needs, look_up, needs_of, no_audio_track, parts_of_video
from epd.store.values import Claim
from tasks.flow.context import Context
from tasks.flow.item import ItemRun


@dataclass(frozen=True, slots=True)
class Settled:
    """This item makes the ``owned`` embeddings; other items make ``joined`` more."""

    owned: tuple[Wanted, ...] = ()
    joined: int = 0


@dataclass(frozen=True, slots=True)
class ItemLookUp:
    """What an item needs, given the digest of its bytes, and what of that is cached."""

    run: ItemRun
    model: ModelConfig
    cards: Mapping[Modality, EncoderCard]

    @classmethod
    def of(cls, run: ItemRun) -> ItemLookUp:
        """The look-up of an item.

        Raises:
            UnknownModel, EncoderNotReady: at once, before anything is looked up.
        """
        _, model = run.context.config.model(run.message.model)
        own = cls(run, model, run.context.cards.of(run.message.model, model))
        own.needs("")
        return own

    def needs(self, digest: str) -> Needs:
        """The embeddings that the item needs. Makes no call."""
        return needs_of(self.run.item, digest, model=self.model, cards=self.cards)

    def found(self, digest: str) -> Found:
        """What is cached and what is missing of every part that the item may have."""
        asked = [(self.run.item, digest)]
        return look_up(
            asked, model=self.model, cards=self.cards, embeddings=self.run.context.store.embeddings
        )[0]

    def found_open(self, digest: str, open_parts: frozenset[PartId]) -> Found:
        """The same of its open parts, with what is known of a video's audio."""
        found = self.found(digest)
        has_audio = self.run.context.store.sources.has_audio(digest) if found.undecided else None
        if has_audio is not None:
            found = parts_of_video(found, has_audio=has_audio)
        return without_final_parts(found, open_parts)


def without_final_parts(found: Found, open_parts: frozenset[PartId]) -> Found:
    """Limit what was found to the open parts of an item.

    An item may be fetched again for its audio alone. Then its frames are not made again, and if its video has
    since changed to one without audio, the open audio part fails.
    """
    if found.main_part not in open_parts:
        found = replace(found, main=None)
    if found.has_audio is False and found.audio_part in open_parts:
        failed = PartRecord.failed(no_audio_track())
        found = replace(found, finished={**found.finished, found.audio_part: failed})
    return found


def needs_no_bytes(context: Context, found: Found) -> bool:
    """Whether all that the item needs is cached or being made, so that its bytes are not needed."""
    if found.undecided:
        return False
    return all(context.store.flights.active([wanted.key for wanted in found.missing]))


def settle(run: ItemRun, found: Found) -> Settled:
    """Finish the parts that are final at once and claim what is missing.

    The audio part of a video is added before any of its parts ends, or the job could end without it. Nothing
    is claimed while only decoding can tell which parts there are: a video that waited for the frames of
    another job would be final with them, before its audio part was known.
    """
    if found.has_audio_part and not run.add_audio_part():
        return Settled()  # the job is gone
    for part, record in found.finished.items():
        run.finish(part, record)
    if found.undecided:
        return Settled(owned=found.missing)
    claims = [(wanted, run.claim(wanted)) for wanted in found.missing]
    return Settled(
        owned=tuple(wanted for wanted, claim in claims if claim is Claim.OWNED),
        joined=sum(claim is Claim.WAITING for _, claim in claims),
    )


def join(run: ItemRun, digest: str) -> bool:
    """Have an item join what is cached or being made for its digest, without its bytes.

    Returns:
        False if it needs something that no other item makes, so that it has to be fetched.
    """
    open_parts = run.open_parts(Stage.FETCH)
    if not open_parts:
        return True
    return not settle(run, ItemLookUp.of(run).found_open(digest, open_parts)).owned
