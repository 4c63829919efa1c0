//! The scripts' own kind: the effects of its definition on fields, and of changes of the definition.

use serde_json::{Value, json};

use super::scripts::{apply, merge, post, probes};
use super::{Script, Step, step};

/// The CustomResourceDefinition of the scripts' own kind, or the same with tighter bounds.
pub(super) fn definition(tight: bool) -> Value {
    let rule = |rule: &str, message: &str| json!([{"rule": rule, "message": message}]);
    let at_most = |most: u8| rule(&format!("self <= {most}"), "too much");
    let (most, size) = if tight { (5, "512Mi") } else { (9, "1Gi") };
    let small = format!("quantity(self).compareTo(quantity('{size}')) <= 0");
    let (text, number) = (json!({"type": "string"}), json!({"type": "integer", "maximum": most}));
    let open = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let part = json!({
        "type": "object", "required": ["name"],
        "properties": {"name": text, "weight": {"type": "integer", "x-kubernetes-validations": at_most(most)}},
    });
    let row = json!({"type": "object", "properties": {"n": number}});
    let fixed = rule("self == oldSelf", "it never changes");
    let grows = rule("self > oldSelf", "it grows with every change");
    let mut fields = json!({
        "size": {"type": "string", "x-kubernetes-validations": rule(&small, "too large")},
        "fixed": {"type": "string", "x-kubernetes-validations": fixed},
        "turn": {"type": "integer", "x-kubernetes-validations": grows},
        "level": {"type": "integer", "default": 1},
        "a": {"type": "integer"},
        "flag": {"type": "boolean"},
        "ratio": {"type": "number"},
        "count": {"type": "integer", "format": "int32", "minimum": 0, "maximum": most},
        "word": {"type": "string", "minLength": 2, "maxLength": 4},
        "mode": {"type": "string", "enum": ["Slow", "Fast"]},
        "at": {"type": "string", "format": "date-time"},
        "share": {"x-kubernetes-int-or-string": true},
        "map": open,
        "labels": {"type": "object", "additionalProperties": text, "maxProperties": 2},
        "list": {"type": "array", "items": {"type": "integer"}},
        "tags": {"type": "array", "x-kubernetes-list-type": "set", "maxItems": 3, "items": text},
        "parts": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
                  "minItems": 1, "maxItems": 4, "items": part},
        "rows": {"type": "array", "items": row},
        "box": {"type": "object", "required": ["other"], "properties": {"other": {"type": "integer"}, "map": open},
                "x-kubernetes-validations": rule(&format!("self.other <= {most}"), "too much")},
        "frame": {"type": "object", "required": [if tight { "new" } else { "old" }],
                  "properties": {"old": text, "new": text}},
    });
    if tight {
        fields["fresh"] = json!({"type": "integer", "default": 7});
    } else {
        fields["gone"] = text;
    }
    let level = rule("self.level < 3 || has(self.size)", "from level 3 on a size is needed");
    let spec = json!({"type": "object", "properties": fields, "x-kubernetes-validations": level});
    let mut status = open;
    status["properties"] = json!({"phase": {"type": "string"}});
    let schema = json!({"type": "object", "properties": {"spec": spec, "status": status}});
    let version = json!({
        "name": "v1", "served": true, "storage": true, "subresources": {"status": {}}, "schema": {"openAPIV3Schema": schema},
    });
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "probes.conformance.clustereddatabase.io"},
        "spec": {
            "group": "conformance.clustereddatabase.io", "scope": "Namespaced", "versions": [version],
            "names": {"kind": "Probe", "plural": "probes", "singular": "probe", "listKind": "ProbeList"},
        },
    })
}

/// Scripts for the definition, the last of which makes what those for the tighter one find.
pub(super) fn scripts() -> Vec<Script> {
    let script = |name, steps| Script { name, steps };
    vec![
        script("values are as the schema says", values()),
        script("what the schema does not know is taken out", pruning()),
        script("an apply says only what the schema knows", applies()),
        script("a rule about what was before is asked at every change", transitions()),
        script("what will be too much is made", kept()),
    ]
}

/// Scripts for the tighter definition.
pub(super) fn tightened() -> Vec<Script> {
    let script = |name, steps| Script { name, steps };
    vec![
        script("what there is is read as the new schema says", read_anew()),
        script("what stays as it was is not refused", ratcheting()),
        script("elements are known by their keys, if there are some", elements()),
    ]
}

fn probe(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "conformance.clustereddatabase.io/v1", "kind": "Probe", "metadata": {"name": name}, "spec": spec})
}

fn refused(name: &str, spec: Value) -> Step {
    let invalid = json!({"kind": "Status", "reason": "Invalid", "code": 422});
    step("POST", probes(""), 422).body(probe(name, spec)).like(invalid)
}

fn values() -> Vec<Step> {
    let wrong = [
        json!("text"),
        json!({"level": "1"}),
        json!({"level": 1.5}),
        json!({"flag": "true"}),
        json!({"ratio": "1"}),
        json!({"word": 12}),
        json!({"word": "a"}),
        json!({"word": "abcde"}),
        json!({"mode": "Else"}),
        json!({"count": -1}),
        json!({"count": 10}),
        json!({"at": "noon"}),
        json!({"share": true}),
        json!({"map": []}),
        json!({"labels": {"a": 1}}),
        json!({"labels": {"a": "1", "b": "2", "c": "3"}}),
        json!({"list": {"a": 1}}),
        json!({"list": [1, "a"]}),
        json!({"list": [null]}),
        json!({"tags": ["a", "a"]}),
        json!({"tags": ["a", "b", "c", "d"]}),
        json!({"parts": []}),
        json!({"parts": [{"weight": 1}]}),
        json!({"parts": [{"name": "a"}, {"name": "a"}]}),
        json!({"parts": [{"name": "a", "weight": 10}]}),
        json!({"rows": [{"n": 10}]}),
        json!({"box": {}}),
        json!({"box": {"other": 10}}),
    ];
    let right = json!({
        "level": 2, "flag": true, "ratio": 0.5, "word": "äöüß", "mode": "Fast", "count": 9, "at": "2027-01-01T00:00:00Z",
        "share": "10%", "map": {"a": {"b": [1, "2"]}}, "labels": {"a": "1"}, "list": [1, 1], "tags": ["a", "b"],
        "parts": [{"name": "a", "weight": 1}, {"name": "b"}], "rows": [{"n": 1}, {"n": 1}], "box": {"other": 1},
    });
    let change = |code, spec: Value| merge(probes("/valued"), code, json!({"spec": spec}));
    let status = |code, status: Value| merge(probes("/valued/status"), code, json!({"status": status}));
    let mut steps: Vec<_> = wrong.into_iter().map(|spec| refused("valued", spec)).collect();
    steps.extend([
        post(probes(""), probe("valued", right.clone())).like(json!({"spec": right})),
        change(422, json!({"count": 10})).like(json!({"reason": "Invalid"})),
        change(422, json!({"level": "2"})).like(json!({"reason": "Invalid"})),
        change(422, json!({"parts": [{"name": "a"}, {"name": "a"}]})).like(json!({"reason": "Invalid"})),
        change(200, json!({"share": 3, "ratio": 1, "count": 0})).like(json!({"spec": {"share": 3}})),
        apply(
            probes("/valued-new"),
            "one",
            422,
            probe("valued-new", json!({"word": "abcde"})),
        )
        .like(json!({"reason": "Invalid"})),
        status(422, json!({"phase": 1})).like(json!({"reason": "Invalid"})),
        status(422, json!("text")).like(json!({"reason": "Invalid"})),
        status(200, json!({"phase": "a", "other": {"b": 1}}))
            .like(json!({"status": {"phase": "a", "other": {"b": 1}}})),
    ]);
    steps
}

fn pruning() -> Vec<Step> {
    let mut body = probe(
        "pruned",
        json!({
            "a": 1, "unknown": 1, "box": {"other": 1, "unknown": 1}, "map": {"unknown": {"a": 1}},
            "parts": [{"name": "a", "unknown": 1}],
        }),
    );
    body["unknown"] = json!({"a": 1});
    let left = json!({"unknown": "<absent>", "spec": {
        "a": 1, "unknown": "<absent>", "box": {"other": 1, "unknown": "<absent>"}, "map": {"unknown": {"a": 1}},
        "parts": [{"name": "a", "unknown": "<absent>"}]}});
    vec![
        post(probes(""), body)
            .like(left)
            .keep("version", "/metadata/resourceVersion"),
        merge(
            probes("/pruned"),
            200,
            json!({"spec": {"unknown": 1, "box": {"unknown": 1}}}),
        )
        .like(json!({"metadata": {"resourceVersion": "${version}"}, "spec": {"unknown": "<absent>"}})),
        merge(probes("/pruned"), 200, json!({"spec": {"map": {"b": 1}}})).like(json!({"spec": {"map": {"b": 1}}})),
    ]
}

fn applies() -> Vec<Step> {
    let applied = |code, spec| apply(probes("/applied"), "one", code, probe("applied", spec));
    let status = |code, mut body: Value| {
        body["apiVersion"] = json!("conformance.clustereddatabase.io/v1");
        body["kind"] = json!("Probe");
        apply(probes("/applied/status"), "one", code, body)
    };
    // So it is, as with a version in what is to be made: the server calls it its own mistake.
    let unread = |spec| applied(500, spec).like(json!({"kind": "Status", "reason": "<absent>", "code": 500}));
    vec![
        unread(json!({"unknown": 1})),
        applied(201, json!({"a": 1, "map": {"unknown": {"b": 1}}}))
            .like(json!({"spec": {"map": {"unknown": {"b": 1}}}})),
        unread(json!({"a": 1, "box": {"other": 1, "unknown": 1}})),
        unread(json!({"a": 1, "rows": [{"unknown": 1}]})),
        unread(json!({"a": "1"})),
        unread(json!({"a": 1, "labels": ["b"]})),
        unread(json!({"a": 1, "parts": [{"name": "b"}, {"name": "b"}]})),
        applied(422, json!({"a": 1.5})).like(json!({"reason": "Invalid"})),
        applied(422, json!({"box": {}})).like(json!({"reason": "Invalid"})),
        status(200, json!({"metadata": {"name": "applied"}})).like(json!({"status": "<absent>"})),
        status(200, json!({"metadata": {"name": "applied"}, "status": {"phase": "a"}})),
        status(500, json!({"metadata": {"name": "applied"}, "status": {"phase": 1}})),
        applied(200, json!({"a": 2, "map": {"unknown": {"b": 1}}})).like(json!({"spec": {"a": 2}})),
    ]
}

fn transitions() -> Vec<Step> {
    let labelled = |code| merge(probes("/turned"), code, json!({"metadata": {"labels": {"a": "b"}}}));
    vec![
        post(probes(""), probe("turned", json!({"turn": 1}))),
        labelled(422).like(json!({"reason": "Invalid"})),
        merge(probes("/turned/status"), 422, json!({"status": {"phase": "a"}})).like(json!({"reason": "Invalid"})),
        merge(
            probes("/turned"),
            200,
            json!({"spec": {"turn": 2}, "metadata": {"labels": {"a": "b"}}}),
        ),
        merge(probes("/turned"), 200, json!({"spec": {"turn": null}})),
        labelled(200),
    ]
}

fn kept() -> Vec<Step> {
    let spec = json!({
        "size": "1Gi", "count": 9, "gone": "x", "parts": [{"name": "a", "weight": 9}, {"name": "b", "weight": 1}],
        "rows": [{"n": 9}], "box": {"other": 9}, "frame": {"old": "x"},
    });
    vec![
        post(probes(""), probe("kept", spec)).like(json!({"spec": {"gone": "x", "fresh": "<absent>"}})),
        post(
            probes(""),
            probe("opened", json!({"box": {"other": 9, "map": {"a": 1}}})),
        ),
        post(probes(""), probe("filled-box", json!({"box": {"other": 9, "map": {}}}))),
    ]
}

fn change(code: u16, spec: Value) -> Step {
    merge(probes("/kept"), code, json!({"spec": spec}))
}

fn read_anew() -> Vec<Step> {
    let tight = refused("tight", json!({"count": 9}));
    let tight = Step {
        path: format!("{}?dryRun=All", tight.path),
        ..tight
    };
    vec![
        tight.eventually(),
        step("GET", probes("/kept"), 200)
            .like(json!({"metadata": {"generation": 1}, "spec": {"fresh": 7, "gone": "<absent>", "count": 9}})),
        // What is new is held against everything.
        refused("tight", json!({"size": "1Gi"})),
        refused("tight", json!({"rows": [{"n": 9}]})),
        refused("tight", json!({"parts": [{"name": "a", "weight": 9}]})),
        refused("tight", json!({"box": {"other": 9}})),
        refused("tight", json!({"frame": {"old": "x"}})),
    ]
}

fn ratcheting() -> Vec<Step> {
    let same = json!({"size": "1Gi", "count": 9, "rows": [{"n": 9}], "frame": {"old": "x"}});
    vec![
        merge(probes("/kept"), 200, json!({"metadata": {"labels": {"a": "b"}}})),
        change(200, json!({"level": 2})).like(json!({"metadata": {"generation": 2}})),
        apply(probes("/kept"), "one", 200, probe("kept", same)),
        merge(probes("/kept/status"), 200, json!({"status": {"phase": "a"}})),
        change(422, json!({"count": 8})).like(json!({"reason": "Invalid"})),
        change(422, json!({"size": "768Mi"})).like(json!({"reason": "Invalid"})),
        // The place of what is wrong counts, and not where it could be mended.
        change(422, json!({"box": {"map": {}}})).like(json!({"reason": "Invalid"})),
        change(422, json!({"frame": {"old": "y"}})).like(json!({"reason": "Invalid"})),
        change(
            200,
            json!({"count": 5, "size": "512Mi", "box": {"other": 5}, "frame": {"new": "y"}}),
        ),
        change(422, json!({"count": 9})).like(json!({"reason": "Invalid"})),
        // A value without a schema never counts as unchanged, and neither does the value around it.
        merge(probes("/filled-box"), 200, json!({"spec": {"level": 2}})),
        merge(probes("/opened"), 422, json!({"spec": {"level": 2}})).like(json!({"reason": "Invalid"})),
    ]
}

fn elements() -> Vec<Step> {
    let part = |name: &str, weight: u8| json!({"name": name, "weight": weight});
    let parts = |code, parts: &[Value]| change(code, json!({"parts": parts}));
    vec![
        parts(200, &[part("b", 2), part("a", 9)]),
        parts(422, &[part("b", 2), part("a", 8)]).like(json!({"reason": "Invalid"})),
        parts(422, &[part("b", 2), part("a", 9), part("c", 9)]).like(json!({"reason": "Invalid"})),
        parts(200, &[part("c", 5), part("b", 2), part("a", 9)]),
        change(422, json!({"rows": [{"n": 9}, {"n": 1}]})).like(json!({"reason": "Invalid"})),
        change(200, json!({"rows": [{"n": 1}, {"n": 5}]})),
    ]
}
