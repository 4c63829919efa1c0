//! Rules about PostgreSQL itself; those about its parameters stand in `parameters`.

use super::{Rule, text};
use crate::names::{PEER_PORT, PROBE_PORT};

pub(super) fn rules() -> Vec<Rule> {
    vec![
        Rule::holds(
            "spec.postgres.image",
            "size(self) <= 512 && self.matches('^[^ \\\\t\\\\r\\\\n]+$')",
            "image must be an image reference of 1 to 512 characters without spaces; leave it out for the operator's default",
            |resource| resource.spec.postgres.image.as_deref().is_none_or(is_image),
        ),
        Rule::holds(
            "spec.postgres.majorVersion",
            "self >= 15 && self <= 18",
            "majorVersion must be 15, 16, 17 or 18",
            |resource| (15..=18).contains(&resource.spec.postgres.major_version),
        ),
        Rule::may_become(
            "spec.postgres.majorVersion",
            "self == oldSelf",
            "majorVersion cannot be changed: make a new database of the other version and move the data into it",
            |old, new| old.spec.postgres.major_version == new.spec.postgres.major_version,
        ),
        Rule::holds(
            "spec.postgres.port",
            format!("self >= 1024 && self <= 65535 && self != {PROBE_PORT} && self != {PEER_PORT}"),
            "port must be 1024 to 65535, but not 8080 or 8433, on which the agent listens",
            |resource| {
                let port = resource.spec.postgres.port;
                port >= 1024 && port != PROBE_PORT && port != PEER_PORT
            },
        ),
        Rule::may_become(
            "spec.postgres.port",
            "self == oldSelf",
            "port cannot be changed: put the old one back, or make a new database with the other port",
            |old, new| old.spec.postgres.port == new.spec.postgres.port,
        ),
    ]
}

fn is_image(image: &str) -> bool {
    (1..=512).contains(&text::size(image)) && !image.contains([' ', '\t', '\r', '\n'])
}
