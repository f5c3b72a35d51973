"""What the user wrote: models, YAML with positions, expressions, checks, schema. Imports no other room."""

from opsctl.playbook.hashing import content_hash
from opsctl.playbook.inventory import LoadedInventory, load_inventory
from opsctl.playbook.loading import LoadedPlaybook, find_playbook, load_playbook, load_playbooks
from opsctl.playbook.resolved import ResolvedService

__all__ = [
    "LoadedInventory",
    "LoadedPlaybook",
    "ResolvedService",
    "content_hash",
    "find_playbook",
    "load_inventory",
    "load_playbook",
    "load_playbooks",
]
