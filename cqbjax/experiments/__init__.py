"""Experiments: the points of a study, how they run, and what they measure, store and show."""

from typing import TYPE_CHECKING

from cqbjax.core.lazy import lazy_names

if TYPE_CHECKING:
    from cqbjax.experiments import clusters
    from cqbjax.experiments.study import build_source
    from cqbjax.experiments.study_types import OutputTable, StudyOutput, StudyType

__all__ = ["OutputTable", "StudyOutput", "StudyType", "build_source", "clusters"]

__getattr__, __dir__ = lazy_names(__name__)
