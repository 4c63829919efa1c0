//! Scripts of requests and the answers that they must get, from the server in memory and from a real one alike: what the
//! one may be trusted for is what the other was seen to do.

mod probe;
mod scripts;

use std::collections::BTreeMap;
use std::time::Duration;

use http::Request;
use http_body_util::BodyExt;
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

/// How long what controllers do may take.
const PATIENCE: Duration = Duration::from_secs(90);

/// Requests that follow each other.
#[derive(Clone, Debug)]
pub struct Script {
    /// What it is about.
    pub name: &'static str,
    steps: Vec<Step>,
}

/// One request and what is expected of its answer.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    method: &'static str,
    /// `{ns}` stands for the namespace, `${name}` for a stored value, here and in the body.
    path: String,
    content: &'static str,
    accept: &'static str,
    body: Value,
    codes: Vec<u16>,
    like: Value,
    keep: Vec<(&'static str, &'static str)>,
    eventually: bool,
}

/// A request without a body.
pub(crate) fn step(method: &'static str, path: impl Into<String>, code: u16) -> Step {
    Step {
        method,
        path: path.into(),
        content: "application/json",
        accept: "application/json",
        body: Value::Null,
        codes: vec![code],
        like: Value::Null,
        keep: Vec::new(),
        eventually: false,
    }
}

impl Step {
    pub(crate) fn body(mut self, body: Value) -> Self {
        self.body = body;
        self
    }

    pub(crate) fn content(mut self, content: &'static str) -> Self {
        self.content = content;
        self
    }

    pub(crate) fn accept(mut self, accept: &'static str) -> Self {
        self.accept = accept;
        self
    }

    /// The answer holds this: maps may hold more; `<absent>`, `<any>` and `<not X>` mean what they say.
    pub(crate) fn like(mut self, like: Value) -> Self {
        self.like = like;
        self
    }

    /// Stores the part of the answer at this JSON pointer under this name.
    pub(crate) fn keep(mut self, name: &'static str, pointer: &'static str) -> Self {
        self.keep.push((name, pointer));
        self
    }

    /// A controller brings it about; asked again until it is so.
    pub(crate) fn eventually(mut self) -> Self {
        self.eventually = true;
        self
    }
}

/// Runs a script in this namespace.
///
/// # Errors
/// At the first answer that is not as expected.
pub async fn run(client: &Client, namespace: &str, script: &Script) -> Result<(), String> {
    let mut kept = BTreeMap::new();
    for (index, step) in script.steps.iter().enumerate() {
        let end = Instant::now() + PATIENCE;
        let answer = loop {
            let answer = send(client, namespace, step, &kept).await?;
            match check(step, &answer, &kept) {
                Ok(()) => break answer,
                Err(why) if !step.eventually || Instant::now() > end => {
                    let (method, path) = (step.method, &step.path);
                    return Err(format!(
                        "{}, step {}: {method} {path}: {why}\n{:#}",
                        script.name,
                        index + 1,
                        answer.1
                    ));
                }
                Err(_) => sleep(Duration::from_millis(500)).await,
            }
        };
        for (name, pointer) in &step.keep {
            let value = answer.1.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
            kept.insert((*name).to_owned(), value.to_owned());
        }
    }
    Ok(())
}

async fn send(
    client: &Client,
    namespace: &str,
    step: &Step,
    kept: &BTreeMap<String, String>,
) -> Result<(u16, Value), String> {
    let path = filled(&step.path.replace("{ns}", namespace), kept);
    let body = match &step.body {
        Value::Null => Vec::new(),
        body => filled(&body.to_string(), kept).into_bytes(),
    };
    let request = Request::builder()
        .method(step.method)
        .uri(path)
        .header("content-type", step.content)
        .header("accept", step.accept)
        .body(Body::from(body))
        .map_err(|error| error.to_string())?;
    let response = client.send(request).await.map_err(|error| error.to_string())?;
    let code = response.status().as_u16();
    let bytes = response
        .into_body()
        .collect()
        .await
        .map_err(|error| error.to_string())?
        .to_bytes();
    let lines = String::from_utf8_lossy(&bytes).into_owned();
    let parse = |text: &str| serde_json::from_str::<Value>(text).unwrap_or_else(|_| json!(text));
    let watch = step.path.contains("watch=true");
    let body = if watch {
        lines.lines().map(parse).collect()
    } else {
        parse(&lines)
    };
    Ok((code, body))
}

fn filled(text: &str, kept: &BTreeMap<String, String>) -> String {
    kept.iter().fold(text.to_owned(), |text, (name, value)| {
        text.replace(&format!("${{{name}}}"), value)
    })
}

fn check(step: &Step, (code, body): &(u16, Value), kept: &BTreeMap<String, String>) -> Result<(), String> {
    if !step.codes.contains(code) {
        return Err(format!("answered {code}, expected {:?}", step.codes));
    }
    let like: Value = serde_json::from_str(&filled(&step.like.to_string(), kept)).unwrap_or_default();
    is_like("", body, &like)
}

fn is_like(path: &str, found: &Value, like: &Value) -> Result<(), String> {
    let differs = || Err(format!("{path} is {found}, expected {like}"));
    match like {
        Value::Null => Ok(()),
        Value::String(text) if text == "<any>" => {
            if found.is_null() {
                differs()
            } else {
                Ok(())
            }
        }
        Value::String(text) if text == "<absent>" => {
            if found.is_null() {
                Ok(())
            } else {
                differs()
            }
        }
        Value::String(text) if text.starts_with("<not ") => {
            let other = text.trim_start_matches("<not ").trim_end_matches('>');
            if found.is_null() || found == other {
                differs()
            } else {
                Ok(())
            }
        }
        Value::Object(map) => map
            .iter()
            .try_for_each(|(key, like)| is_like(&format!("{path}/{key}"), &found[key], like)),
        Value::Array(list) => {
            if found.as_array().map(Vec::len) != Some(list.len()) {
                return differs();
            }
            let mut pairs = list.iter().enumerate();
            pairs.try_for_each(|(index, like)| is_like(&format!("{path}/{index}"), &found[index], like))
        }
        like => {
            if found == like {
                Ok(())
            } else {
                differs()
            }
        }
    }
}

/// Definitions of the scripts' own kind, each with what is done under it; what there is then stays for the next one.
pub fn stages() -> [(Value, Vec<Script>); 2] {
    let mut first = scripts::scripts();
    first.extend(probe::scripts());
    [
        (probe::definition(false), first),
        (probe::definition(true), probe::tightened()),
    ]
}
