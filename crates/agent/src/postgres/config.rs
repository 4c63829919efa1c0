//! The configuration files, as text. The agent writes all of their content.

pub use machine::instance::observer::Following;

use api::spec::HBA;

use super::settings::{Files, Role, Settings, SettingsError};
use super::{hba, quote, values};
use crate::volume::EnforcedSettings;

/// The configuration files' content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// `postgresql.conf`.
    pub postgresql_conf: String,
    /// `pg_hba.conf`.
    pub pg_hba_conf: String,
    /// `pg_ident.conf`.
    pub pg_ident_conf: String,
    /// `standby.signal` must exist at start.
    pub standby: bool,
    /// How the standby finds its primary, as the files say.
    pub following: Following,
    /// The value of `synchronous_standby_names` in the files.
    pub synchronous: String,
    /// The settings that a standby's control file demands, if they raise limits above the user's settings.
    pub raised: Option<EnforcedSettings>,
}

impl Config {
    /// Renders the files for a server in `role`.
    ///
    /// # Errors
    /// Fails if a user's setting cannot be written: [`SettingsError`] says which, and why.
    pub fn render(settings: &Settings, files: &Files, role: &Role) -> Result<Self, SettingsError> {
        let values = values::render(settings, files, role)?;
        let raised = match role {
            Role::Primary { .. } => None,
            Role::Standby { primary, enforced } => {
                let nothing = Role::Standby {
                    primary: primary.clone(),
                    enforced: EnforcedSettings::default(),
                };
                (values != values::render(settings, files, &nothing)?).then_some(*enforced)
            }
        };
        let mut text = "# Written by the agent; changes made here are lost.\n".to_owned();
        for (name, value) in &values {
            text.push_str(&format!("{name} = {}\n", quote::setting(value)));
        }
        let value = |name: &str| values.get(name).cloned().unwrap_or_default();
        Ok(Self {
            following: Following {
                conninfo: value("primary_conninfo"),
                slot: value("primary_slot_name"),
            },
            postgresql_conf: text,
            pg_hba_conf: hba::pg_hba(match role {
                Role::Primary { open: false, .. } => None,
                Role::Primary { open: true, .. } | Role::Standby { .. } => Some(users_lines(settings)?),
            }),
            pg_ident_conf: hba::pg_ident(&files.system_user),
            standby: matches!(role, Role::Standby { .. }),
            synchronous: values::synchronous(role),
            raised,
        })
    }
}

/// The user's lines of `pg_hba.conf`, each checked again: PostgreSQL does not start with one that it does not take.
fn users_lines(settings: &Settings) -> Result<Vec<&str>, SettingsError> {
    let lines = settings.parameters.get(HBA).map_or("", String::as_str).lines();
    let checked = lines.map(|line| match api::rules::is_hba_line(line) {
        true => Ok(line),
        false => Err(SettingsError::Line(line.to_owned())),
    });
    checked.collect()
}

#[cfg(test)]
mod tests;
