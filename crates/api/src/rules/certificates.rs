//! Rules about `spec.certificates`.

use super::Rule;

/// The most hours: a year.
const MOST: u32 = 8_760;

pub(super) fn rules() -> Vec<Rule> {
    vec![Rule::holds(
        "spec.certificates.clientTrustHours",
        format!("self >= 0 && self <= {MOST}"),
        format!("certificates.clientTrustHours must be 0 to {MOST}: correct it"),
        |resource| resource.spec.client_trust_hours() <= MOST,
    )]
}
