"""The code base of ``birdlog`` as every session finds it, and commands that sessions share."""

from scripts.sample_sessions.calls import Project, bash

IMPORT = """\
use crate::model::Sighting;

pub fn parse_row(row: &str) -> Option<Sighting> {
    let mut cells = row.split(',');
    Some(Sighting {
        species: cells.next()?.to_string(),
        count: cells.next()?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_species() {
        assert_eq!(parse_row("\\"Tern, Arctic\\",3").unwrap().count, 3);
    }
}
"""

MODEL = """\
#[derive(Debug, PartialEq)]
pub struct Sighting {
    pub species: String,
    pub count: u32,
}
"""

REPORT = """\
use crate::model::Sighting;

pub fn total(sightings: &[Sighting]) -> u32 {
    sightings.iter().map(|s| s.count).sum()
}

pub fn headline(sightings: &[Sighting]) -> String {
    format!("{} birds", total(sightings))
}
"""

SYNC = """\
use std::env;

pub fn endpoint() -> String {
    env::var("BIRDLOG_URL").unwrap_or_else(|_| "http://localhost:8080".into())
}
"""

BIRDLOG = Project(
    "birdlog",
    "/Users/jonas",
    "/Users/jonas/dev/birdlog",
    {
        "src/import.rs": IMPORT,
        "src/model.rs": MODEL,
        "src/report.rs": REPORT,
        "src/sync.rs": SYNC,
        "src/main.rs": "mod import;\nmod model;\nmod report;\nmod sync;\n\nfn main() {}\n",
        "Cargo.toml": '[package]\nname = "birdlog"\nversion = "0.3.0"\nedition = "2024"\n',
    },
)
CARGO_IMPORT = bash("cargo test import::tests")
CARGO_REPORT = bash("cargo test report::tests")
CARGO_SYNC = bash("cargo test sync::tests")
STATUS = bash("git status --short")
