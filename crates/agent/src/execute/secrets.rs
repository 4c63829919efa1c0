//! Applying changed Secrets while PostgreSQL runs.

use std::sync::Arc;

use super::{Executor, SMALL};
use crate::event::Event;
use crate::observe::World;

impl Executor {
    /// Has PostgreSQL read the cluster's certificate again, if it runs.
    pub fn reload_certificate(&self, world: &World) {
        let Some(server) = world.server.clone() else {
            return;
        };
        let written = Arc::clone(&self.written);
        self.workers.spawn(async move {
            // Held so that the configuration is not being written meanwhile: PostgreSQL would read half of it.
            let _written = written.lock().await;
            match server.reload() {
                Ok(()) => tracing::info!("PostgreSQL reads the cluster's certificate again"),
                Err(error) => tracing::warn!("have PostgreSQL read the cluster's certificate: {error}"),
            }
        });
    }

    /// Sets the password of the application's role to that of the Secret, unless it is that already. Ends with
    /// [`Event::Password`].
    pub fn set_password(&self, world: &World) {
        let Some(owner) = world.spec.as_ref().map(|spec| spec.initdb().owner().to_owned()) else {
            let _ = self
                .events
                .send(Event::Password(Err("the owner is not known".to_owned())));
            return;
        };
        let mut sql = self.own_connection(world);
        let (file, events) = (self.password_file.clone(), self.events.clone());
        self.workers.spawn(async move {
            let work = async {
                let password = tokio::fs::read_to_string(&file)
                    .await
                    .map_err(|error| error.to_string())?;
                sql.ensure_password(&owner, &password)
                    .await
                    .map_err(|error| error.to_string())
            };
            let done = tokio::time::timeout(SMALL, work).await;
            let done = done.unwrap_or_else(|_| Err(format!("it did not end within {} s", SMALL.as_secs())));
            let _ = events.send(Event::Password(done));
        });
    }
}
