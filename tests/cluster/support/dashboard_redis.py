"""Real Redis with the user that the chart creates for the dashboard."""

from pathlib import Path
from typing import Any

from .helm import Helm, of_kind
from .redis_process import RedisProcess


class DashboardRedis(RedisProcess):
    """Redis with the user that the chart makes for the dashboard."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        [secret] = [
            manifest
            for manifest in of_kind(Helm(folder / "helm").render({}), "Secret")
            if "users.acl" in manifest.get("stringData", {})
        ]
        [line] = [line for line in secret["stringData"]["users.acl"].splitlines() if "user dashboard" in line]
        self._rules = line.split()[2:]
        self.dashboard_password = folder / "dashboard-password"
        self.dashboard_password.write_text(secret["stringData"]["dashboard-password"])

    def start(self) -> None:
        super().start()
        self.client().execute_command("ACL SETUSER", "dashboard", *self._rules)

    @property
    def settings(self) -> dict[str, Any]:
        return {
            "REDIS_HOST": "127.0.0.1",
            "REDIS_PORT": self.port,
            "REDIS_USER": "dashboard",
            "REDIS_PASSWORD_FILE": self.dashboard_password,
        }
