//! End-to-end: the scripts that the API server in memory (`crates/fake-api`) obeys, on a real one.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::wait::{Seen, until};
use e2e::{Namespace, connect_for_test};
use fake_api::conformance::{run, stages};
use kube::api::{Api, ApiResource, DynamicObject, Patch, PatchParams};

/// Bound of every step; far above what it takes, since the machine may be busy.
const BOUND: Duration = Duration::from_secs(120);

fn resource(group: &str, kind: &str, plural: &str) -> ApiResource {
    ApiResource {
        group: group.to_owned(),
        version: "v1".to_owned(),
        api_version: format!("{group}/v1"),
        kind: kind.to_owned(),
        plural: plural.to_owned(),
    }
}

#[tokio::test]
async fn a_real_api_server_answers_as_the_one_in_memory_does() -> Result<()> {
    let namespace = Namespace::fresh(connect_for_test().await?, "conformance").await?;
    let client = &namespace.client;
    let definitions = resource(
        "apiextensions.k8s.io",
        "CustomResourceDefinition",
        "customresourcedefinitions",
    );
    let definitions: Api<DynamicObject> = Api::all_with(client.clone(), &definitions);
    let mut wrong = Vec::new();
    let mut name = String::new();
    for (definition, scripts) in stages() {
        definition["metadata"]["name"]
            .as_str()
            .context("a name")?
            .clone_into(&mut name);
        definitions
            .patch(
                &name,
                &PatchParams::apply("conformance").force(),
                &Patch::Apply(&definition),
            )
            .await
            .context("define probes")?;
        let probes = resource("conformance.clustereddatabase.io", "Probe", "probes");
        let probes: Api<DynamicObject> = Api::namespaced_with(client.clone(), &namespace.name, &probes);
        until("probes to be served", BOUND, || async {
            let listed = probes.list(&Default::default()).await;
            Ok(listed.map_or_else(|error| Seen::NotYet(error.to_string()), |_| Seen::Yes(())))
        })
        .await?;
        for script in scripts {
            wrong.extend(run(client, &namespace.name, &script).await.err());
        }
    }
    definitions
        .delete(&name, &Default::default())
        .await
        .context("remove the definition")?;
    namespace.remove().await?;
    ensure!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    Ok(())
}
