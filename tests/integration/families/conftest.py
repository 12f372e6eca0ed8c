from support.process_groups import no_process_group_stays

__all__ = ["no_process_group_stays"]
