"""Generated requests over the whole OpenAPI document: never a 500, every refusal a catalogued problem."""

import asyncio
from pathlib import Path

import httpx
import schemathesis
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.postgres import TestServer

from space.api.app import make_app
from space.api.context import Platform
from space.api.keys import new_key
from space.base.settings import Settings
from space.domain.errors import catalogue
from space.store import Database


def test_every_operation_survives_generated_input(postgres: TestServer, tmp_path: Path) -> None:
    with asyncio.Runner() as runner:
        context = postgres.database()
        db = runner.run(Database.open(runner.run(context.__aenter__())))
        plain, sha256 = new_key()
        runner.run(db.execute("add_organisation", org_id="o"))
        runner.run(
            db.fetchrow(
                "add_key", id="k", org_id="o", name="k", role="operator", scopes=[], sha256=sha256, created_by="t"
            )
        )
        config = Settings.load({"SPACE_STATE_DIR": str(tmp_path), "SPACE_DATA_PLANE_URL": "http://127.0.0.1:1"})
        http = httpx.AsyncClient(trust_env=False)
        app = make_app(Platform(db, config, Ed25519PrivateKey.generate(), http))
        client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://api")
        headers = {"Authorization": f"Bearer {plain}"}
        schema = schemathesis.openapi.from_dict(app.openapi())
        for result in schema.get_all_operations():
            operation = result.ok()  # type: ignore[union-attr]

            @settings(max_examples=12, deadline=None, database=None, suppress_health_check=list(HealthCheck))
            @given(data=st.data())
            def try_it(data: st.DataObject) -> None:
                case = data.draw(operation.as_strategy())  # noqa: B023 (run before the next turn)
                path = case.formatted_path
                body = {} if isinstance(case.body, type(schemathesis.core.NOT_SET)) else {"json": case.body}
                answer = runner.run(client.request(case.method, path, params=case.query, headers=headers, **body))
                assert answer.status_code != 500, (case.method, path, answer.text)
                if answer.status_code >= 400:
                    assert answer.json()["code"] in catalogue()

            try_it()
        runner.run(client.aclose())
        runner.run(http.aclose())
        runner.run(db.close())
        runner.run(context.__aexit__(None, None, None))
