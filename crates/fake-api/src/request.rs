//! Requests, as their paths and queries say them.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::kinds::Kind;
use crate::reply::Refusal;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// One object.
    Get,
    /// Several.
    List,
    /// Their changes.
    Watch,
    /// POST.
    Create,
    /// PUT.
    Update,
    /// PATCH with a JSON merge patch.
    Merge,
    /// PATCH with a strategic merge patch.
    Strategic,
    /// PATCH by server-side apply.
    Apply,
    /// DELETE.
    Delete,
}

impl Verb {
    /// It may change something.
    pub const fn writes(self) -> bool {
        !matches!(self, Verb::Get | Verb::List | Verb::Watch)
    }
}

/// The parameters behind the path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query(BTreeMap<String, String>);

impl Query {
    fn parse(text: &str) -> Self {
        let pairs = text.split('&').filter_map(|pair| pair.split_once('='));
        Self(pairs.map(|(key, value)| (decode(key), decode(value))).collect())
    }

    /// One of them.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// One that is `true` or not.
    pub fn is(&self, name: &str) -> bool {
        self.get(name) == Some("true")
    }

    /// One that is a number.
    pub fn number(&self, name: &str) -> Option<u64> {
        self.get(name)?.parse().ok()
    }
}

/// One request.
#[derive(Clone, Debug)]
pub struct Call {
    /// What is asked for.
    pub verb: Verb,
    /// Of which kind.
    pub kind: &'static Kind,
    /// In which namespace; empty for objects in none, and for lists of all.
    pub namespace: String,
    /// The object's name; empty for lists, and for POSTs.
    pub name: String,
    /// Such as `status`; empty for the object itself.
    pub subresource: String,
    /// The parameters.
    pub query: Query,
    /// Only metadata is wanted.
    pub metadata_only: bool,
    /// What was sent.
    pub body: Value,
}

impl Call {
    /// A request for an object itself, as a controller in the server's own process would make it.
    pub fn new(verb: Verb, plural: &str, namespace: &str, name: &str, body: Value) -> Self {
        Self {
            verb,
            kind: Kind::of(plural),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            subresource: String::new(),
            query: Query::default(),
            metadata_only: false,
            body,
        }
    }

    /// The same for a subresource.
    pub fn to(mut self, subresource: &str) -> Self {
        self.subresource = subresource.to_owned();
        self
    }

    /// The same with a parameter.
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.query.0.insert(name.to_owned(), value.to_owned());
        self
    }

    /// Reads a request.
    ///
    /// # Errors
    /// For paths that are not served, and bodies that are no JSON.
    pub fn parse(method: &str, path_and_query: &str, kind: &str, accept: &str, body: &[u8]) -> Result<Self, Refusal> {
        let (path, query) = path_and_query.split_once('?').unwrap_or((path_and_query, ""));
        let place = Place::parse(path)
            .ok_or_else(|| Refusal::new(404, "NotFound", "the server could not find the requested resource"))?;
        let query = Query::parse(query);
        let verb = match method {
            "GET" if query.is("watch") => Verb::Watch,
            "GET" if place.name.is_empty() => Verb::List,
            "GET" => Verb::Get,
            "POST" => Verb::Create,
            "PUT" => Verb::Update,
            "DELETE" => Verb::Delete,
            "PATCH" => patch_verb(kind)?,
            other => return Err(Refusal::new(405, "MethodNotAllowed", format!("{other} is not allowed"))),
        };
        let body = match body {
            [] => Value::Null,
            bytes => serde_json::from_slice(bytes).map_err(|error| Refusal::bad(error.to_string()))?,
        };
        Ok(Self {
            verb,
            query,
            metadata_only: accept.contains("as=PartialObjectMetadata"),
            body,
            ..place.into_call()
        })
    }

    /// The writer, by the parameter.
    pub fn manager(&self) -> &str {
        self.query.get("fieldManager").unwrap_or("unknown")
    }

    /// For traces: `Apply services ns/db-rw`.
    pub fn summary(&self) -> String {
        let sub = match self.subresource.as_str() {
            "" => String::new(),
            sub => format!("/{sub}"),
        };
        let name = match self.name.as_str() {
            "" => self.body["metadata"]["name"].as_str().unwrap_or_default(),
            name => name,
        };
        format!(
            "{:?} {}{sub} {}/{name}",
            self.verb,
            self.kind.qualified(),
            self.namespace
        )
    }
}

fn patch_verb(kind: &str) -> Result<Verb, Refusal> {
    match kind {
        "application/merge-patch+json" => Ok(Verb::Merge),
        "application/strategic-merge-patch+json" => Ok(Verb::Strategic),
        "application/apply-patch+yaml" => Ok(Verb::Apply),
        other => Err(Refusal::new(
            415,
            "UnsupportedMediaType",
            format!("{other} is not supported"),
        )),
    }
}

/// What a path names.
struct Place {
    kind: &'static Kind,
    namespace: String,
    name: String,
    subresource: String,
}

impl Place {
    fn parse(path: &str) -> Option<Self> {
        let parts: Vec<_> = path.trim_matches('/').split('/').collect();
        let (group, version, rest) = match parts.as_slice() {
            ["api", version, rest @ ..] => ("", *version, rest),
            ["apis", group, version, rest @ ..] => (*group, *version, rest),
            _ => return None,
        };
        let (namespace, rest) = match rest {
            ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (*namespace, rest),
            rest => ("", rest),
        };
        let kind = Kind::find(group, version, rest.first()?)?;
        let at = |index: usize| rest.get(index).copied().unwrap_or_default().to_owned();
        (rest.len() <= 3).then(|| Self {
            kind,
            namespace: namespace.to_owned(),
            name: at(1),
            subresource: at(2),
        })
    }

    fn into_call(self) -> Call {
        Call {
            verb: Verb::Get,
            kind: self.kind,
            namespace: self.namespace,
            name: self.name,
            subresource: self.subresource,
            query: Query::default(),
            metadata_only: false,
            body: Value::Null,
        }
    }
}

/// Undoes the encoding of a query's parts.
fn decode(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        match byte {
            b'+' => bytes.push(b' '),
            b'%' => {
                let digits: String = rest.by_ref().take(2).map(char::from).collect();
                bytes.extend(u8::from_str_radix(&digits, 16));
            }
            other => bytes.push(other),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(method: &str, path: &str) -> Call {
        Call::parse(method, path, "application/merge-patch+json", "", b"").unwrap()
    }

    #[test]
    fn paths_name_what_they_name() {
        let call = parse("PATCH", "/api/v1/namespaces/ns/pods/db-0/resize?&fieldManager=a%2Fb");
        assert_eq!((call.kind.kind, call.verb), ("Pod", Verb::Merge));
        assert_eq!((call.namespace.as_str(), call.name.as_str()), ("ns", "db-0"));
        assert_eq!((call.subresource.as_str(), call.manager()), ("resize", "a/b"));
        let call = parse("GET", "/apis/apps/v1/statefulsets?watch=true");
        assert_eq!((call.kind.kind, call.verb), ("StatefulSet", Verb::Watch));
        let call = parse("GET", "/api/v1/namespaces/ns");
        assert_eq!(
            (call.kind.kind, call.name.as_str(), call.verb),
            ("Namespace", "ns", Verb::Get)
        );
        let call = parse("GET", "/api/v1/nodes");
        assert_eq!((call.kind.kind, call.verb), ("Node", Verb::List));
        let unknown = Call::parse("GET", "/apis/nowhere/v1/things", "", "", b"").unwrap_err();
        assert_eq!((unknown.code, unknown.reason), (404, "NotFound"));
        assert_eq!(
            Call::parse("PATCH", "/api/v1/nodes/a", "text/plain", "", b"")
                .unwrap_err()
                .code,
            415
        );
    }
}
