use super::*;
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::{
    ResourceExt,
    core::{ObjectList, PartialObjectMeta, WatchEvent},
};

/// Kubernetes stores it, and it is later than any time of this program.
const LATE: &str = "9999-12-31T00:00:00Z";

fn nested(levels: usize) -> String {
    format!("{}1{}", r#"{"f:a":"#.repeat(levels), "}".repeat(levels))
}

fn list(items: &[String]) -> String {
    format!(
        r#"{{"apiVersion":"v1","kind":"PodList","metadata":{{"resourceVersion":"9"}},"items":[{}]}}"#,
        items.join(",")
    )
}

fn item(name: &str, metadata: &str, status: &str) -> String {
    format!(
        r#"{{"metadata":{{"name":"{name}","namespace":"n","uid":"u","resourceVersion":"7"{metadata}}},"status":{{{status}}}}}"#
    )
}

fn managed(time: &str, fields: &str) -> String {
    format!(
        r#","managedFields":[{{"manager":"x","operation":"Update","apiVersion":"v1","time":"{time}","fieldsV1":{fields}}}]"#
    )
}

#[test]
fn one_object_that_cannot_be_read_takes_no_other_with_it() {
    let condition = format!(r#""conditions":[{{"type":"a.b/c","status":"True","lastTransitionTime":"{LATE}"}}]"#);
    let items = [
        item("plain", "", ""),
        item("late", &managed(LATE, "{}"), ""),
        item("deep", &managed("2026-01-01T00:00:00Z", &nested(200)), ""),
        item("late-status", "", &condition),
        item("last", "", r#""phase":"Running""#),
    ];
    let text = list(&items);
    assert!(serde_json::from_str::<ObjectList<Pod>>(&text).is_err(), "the attack");
    let all: ObjectList<Watched<Pod>> = serde_json::from_str(&text).unwrap();
    let names: Vec<String> = all.items.iter().map(ResourceExt::name_any).collect();
    assert_eq!(names, ["plain", "late", "deep", "late-status", "last"]);
    let readable: Vec<Option<Pod>> = all.items.into_iter().map(Watched::readable).collect();
    let found: Vec<Option<String>> = readable
        .iter()
        .map(|pod| pod.as_ref().map(ResourceExt::name_any))
        .collect();
    assert_eq!(
        found,
        ["plain", "late", "deep", "", "last"].map(|name| (!name.is_empty()).then(|| name.to_owned()))
    );
    assert_eq!(
        readable[4].as_ref().unwrap().status.as_ref().unwrap().phase.as_deref(),
        Some("Running")
    );
}

#[test]
fn metadata_alone_is_read_the_same_way() {
    let text = list(&[item("late", &managed(LATE, &nested(200)), "")]);
    let all: ObjectList<Watched<PartialObjectMeta<Secret>>> = serde_json::from_str(&text).unwrap();
    let object = all.items.into_iter().next().unwrap().readable().unwrap();
    assert_eq!(
        (object.name_any().as_str(), object.metadata.managed_fields),
        ("late", None)
    );
}

#[test]
fn an_event_of_an_object_that_cannot_be_read_is_one() {
    let status = format!(r#""startTime":"{LATE}""#);
    for (kind, is_left_out) in [("MODIFIED", true), ("DELETED", false)] {
        let text = format!(r#"{{"type":"{kind}","object":{}}}"#, item("late", "", &status));
        let event: WatchEvent<Watched<Pod>> = serde_json::from_str(&text).unwrap();
        let found = match event {
            WatchEvent::Modified(object) => object.readable(),
            WatchEvent::Deleted(object) => object.deleted(),
            other => panic!("{other:?}"),
        };
        assert_eq!(found.is_none(), is_left_out, "{kind}");
        assert!(found.is_none_or(|pod| pod.name_any() == "late" && pod.uid().as_deref() == Some("u")));
    }
    let bookmark =
        r#"{"type":"BOOKMARK","object":{"kind":"Pod","apiVersion":"v1","metadata":{"resourceVersion":"8"}}}"#;
    assert!(matches!(
        serde_json::from_str::<WatchEvent<Watched<Pod>>>(bookmark),
        Ok(WatchEvent::Bookmark(_))
    ));
}
