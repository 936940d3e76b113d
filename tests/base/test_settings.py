"""The settings table: refusals, masking, durations and the generated page."""

from pathlib import Path

import pytest

from space.base.durations import format_duration, parse_duration
from space.base.settings import Settings, SettingsError, known_variables, render_table

ROOT = Path(__file__).parents[2]


def test_page_is_what_the_table_says() -> None:
    assert (ROOT / "docs/settings.md").read_text() == render_table()


def test_every_setting_has_a_meaning_and_a_reason() -> None:
    for name, field in Settings.model_fields.items():
        extra = field.json_schema_extra
        assert field.description, name
        assert isinstance(extra, dict), name
        assert extra["why"], name


def test_unknown_variable_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(SettingsError, match="SPACE_STATE_DRI is not a setting; did you mean SPACE_STATE_DIR"):
        Settings.load({"SPACE_STATE_DRI": "/x", "HOME": "/root"})


def test_bad_value_names_the_variable() -> None:
    with pytest.raises(SettingsError, match="SPACE_API_PORT"):
        Settings.load({"SPACE_API_PORT": "many"})


def test_secrets_are_masked_but_handed_on() -> None:
    settings = Settings.load({"SPACE_DATABASE_URL": "postgresql://u:hush@h/d", "SPACE_TOKEN_TTL": "90s"})
    assert "hush" not in repr(settings)
    assert "hush" not in str(settings.dump())
    assert settings.token_ttl == 90
    assert Settings.load(settings.environment()) == settings


def test_empty_is_unset() -> None:
    assert Settings.load({"SPACE_NODE_NAME": ""}).node_name is None
    assert all(name.startswith("SPACE_") for name in known_variables())


@pytest.mark.parametrize(
    ("text", "seconds"), [("250ms", 0.25), ("30s", 30), ("1.5m", 90), ("2h", 7200), ("1d", 86400), ("0s", 0)]
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds
    assert parse_duration(format_duration(seconds)) == seconds


@pytest.mark.parametrize("text", ["", "5", "-1s", "1 s", "s", "1w", "1e3s", "٣s", "9999999999s"])
def test_not_durations(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        parse_duration(text)
