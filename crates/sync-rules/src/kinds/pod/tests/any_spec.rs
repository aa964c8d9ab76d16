//! Specs of any fields and values, whether or not an API server would accept them.

use super::*;
use proptest::prelude::*;

fn key() -> impl Strategy<Value = String> {
    let known = spec::SPEC
        .iter()
        .map(|(name, _)| (*name).to_owned())
        .collect::<Vec<_>>();
    prop_oneof![prop::sample::select(known), "[a-z]{1,8}"]
}

fn anything() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i16>().prop_map(Value::from),
        "[a-z/.]{0,12}".prop_map(Value::from)
    ];
    leaf.prop_recursive(4, 32, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(key(), inner, 0..4).prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    /// Whatever a spec holds, translation does not panic, gives the same twice, and never lets a forbidden field through.
    #[test]
    fn no_spec_gets_anything_forbidden_through(spec in prop::collection::btree_map(key(), anything(), 0..8)) {
        let mut pod = pod();
        for (key, value) in spec {
            pod["spec"][key] = value;
        }
        let (first, second) = (translate(&pod), translate(&pod));
        match (first, second) {
            (Ok(first), Ok(second)) => {
                prop_assert_eq!(json::hash(&first.object), json::hash(&second.object));
                let spec = first.object["spec"].as_object().unwrap();
                for (key, value) in spec {
                    prop_assert!(spec::SPEC.iter().any(|(known, _)| known == key), "{key}");
                    let forbidden = ["hostNetwork", "hostPID", "hostIPC", "nodeName", "serviceAccountName", "runtimeClassName", "schedulerName"];
                    prop_assert!(!forbidden.contains(&key.as_str()) || json::is_unset(value), "{key}");
                }
                prop_assert_eq!(&spec["nodeSelector"][labels::TENANT], &json!(test_tenant().slug));
                prop_assert_eq!(&spec["automountServiceAccountToken"], &json!(false));
                prop_assert_eq!(&spec["enableServiceLinks"], &json!(false));
                for volume in json::items(&first.object, &["spec", "volumes"]) {
                    let allowed = ["name", "configMap", "secret", "emptyDir", "image", "downwardAPI", "projected", "persistentVolumeClaim"];
                    prop_assert!(volume.as_object().unwrap().keys().all(|key| allowed.contains(&key.as_str())), "{volume}");
                }
            }
            (Err(first), Err(second)) => prop_assert_eq!(first, second),
            _ => prop_assert!(false, "translated once and denied once"),
        }
    }
}
