"""Fields that the presets of a job's validation sets stand for, as text. Pure."""

from collections.abc import Iterator

import yaml

from kubealign.spec.job import AlignmentJob


def preset_texts(job: AlignmentJob) -> Iterator[str]:
    """Yield, for each set with a preset, its path and the YAML of the fields that could be written in its
    place.
    """
    for rows in job.spec.held_out_rows:
        if not rows.is_preset or rows.sampling is None:
            continue
        fields = {
            "data": rows.data.model_dump(mode="json", by_alias=True, exclude_defaults=True),
            "sampling": rows.sampling.model_dump(mode="json", by_alias=True, exclude_defaults=True),
        }
        text = yaml.safe_dump(fields, sort_keys=False, allow_unicode=True, width=100)
        indented = "".join(f"  {line}\n" for line in text.splitlines())
        yield f"{rows.field('preset')} of {job.name} stands for:\n{indented}".rstrip()
