use super::*;
use serde_json::Value;

const RESTORED: &str = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn set(resources: &[&str]) -> BTreeSet<String> {
    resources.iter().map(ToString::to_string).collect()
}

/// How an API server stores and reads objects: as its configuration says.
#[derive(Clone, Debug, Default)]
struct Server(Option<Value>);

impl Server {
    fn new(stored: &BTreeMap<String, String>) -> Self {
        let text = Encryption::read(stored).unwrap().configuration();
        Self(text.map(|text| serde_json::from_str(&text).unwrap()))
    }

    fn providers(&self, resource: &str) -> Vec<Value> {
        let entries = self.0.iter().flat_map(|all| all["resources"].as_array().unwrap());
        let mut of_resource = entries.filter(|entry| entry["resources"].as_array().unwrap().contains(&resource.into()));
        let Some(entry) = of_resource.next() else {
            return vec![serde_json::json!({"identity": {}})];
        };
        assert!(of_resource.next().is_none(), "{resource} is there twice");
        entry["providers"].as_array().unwrap().clone()
    }

    /// The head of what it stores.
    fn write(&self, resource: &str) -> Vec<u8> {
        match self.providers(resource)[0]["secretbox"]["keys"][0]["name"].as_str() {
            Some(key) => head_of(key),
            None => b"k8s\0".to_vec(),
        }
    }

    fn can_read(&self, resource: &str, head: &[u8]) -> bool {
        let providers = self.providers(resource);
        let is_identity = |provider: &Value| provider.get("identity").is_some();
        if !head.starts_with(ENCRYPTED.as_bytes()) {
            return providers.iter().any(is_identity);
        }
        let keys = providers
            .iter()
            .flat_map(|provider| provider["secretbox"]["keys"].as_array().into_iter().flatten());
        keys.map(|key| key["name"].as_str().unwrap())
            .any(|key| head.starts_with(&head_of(key)))
    }
}

/// A tenant with two API servers, which are replaced one after the other, and objects of two resources.
struct Tenant {
    stored: BTreeMap<String, String>,
    servers: [Server; 2],
    objects: BTreeMap<(String, u32), Vec<u8>>,
    now: i64,
}

const RESOURCES: [&str; 2] = ["secrets", "widgets.example.com"];

impl Tenant {
    /// One that has run without encryption.
    fn new() -> Self {
        let mut tenant = Self {
            stored: BTreeMap::new(),
            servers: [Server::default(), Server::default()],
            objects: BTreeMap::new(),
            now: 0,
        };
        tenant.write_all();
        tenant
    }

    fn encryption(&self) -> Encryption {
        Encryption::read(&self.stored).unwrap()
    }

    /// Each server writes an object of each resource, and each reads all that are stored.
    fn write_all(&mut self) {
        for resource in RESOURCES {
            for (number, server) in (0..).zip(&self.servers) {
                self.objects.insert((resource.into(), number), server.write(resource));
            }
        }
        self.check_all_readable();
    }

    fn check_all_readable(&self) {
        for ((resource, _), head) in &self.objects {
            for server in &self.servers {
                assert!(server.can_read(resource, head), "{server:?} {resource} {head:?}");
            }
            assert!(self.encryption().can_read(head));
        }
    }

    fn are_servers_current(&self) -> bool {
        let current = Server::new(&self.stored);
        self.servers.iter().all(|server| server.0 == current.0)
    }

    /// One step, as control takes it. `first`: which server is replaced first. Returns whether there was something to do.
    fn step(&mut self, wanted: &BTreeSet<String>, due: Option<Timestamp>, first: usize) -> bool {
        self.now += 1;
        let observed = if self.are_servers_current() {
            Ok(())
        } else {
            Err("rollout".to_owned())
        };
        let step = self.encryption().next_step(wanted, due, &observed);
        match &step {
            EncryptionStep::Rest => return false,
            EncryptionStep::Wait(_) => {
                let current = Server::new(&self.stored);
                let outdated = [first, 1 - first]
                    .into_iter()
                    .find(|number| self.servers[*number].0 != current.0);
                self.servers[outdated.unwrap()] = current;
            }
            EncryptionStep::Rewrite => {
                let encryption = self.encryption();
                let stale = self
                    .objects
                    .iter()
                    .filter(|((resource, _), _)| encryption.resources().contains(resource.as_str()))
                    .find(|((resource, _), head)| !encryption.is_current(resource, head))
                    .map(|(key, _)| key.clone());
                match stale {
                    Some(key) => {
                        let head = self.servers[first].write(&key.0);
                        self.objects.insert(key, head);
                    }
                    None => self.carry_out(&EncryptionStep::Enter(EncryptionPhase::Completed)),
                }
            }
            EncryptionStep::Begin(_) | EncryptionStep::Enter(_) => self.carry_out(&step),
        }
        self.check_all_readable();
        // A server of before may write at any time.
        self.write_one(first);
        true
    }

    fn write_one(&mut self, number: usize) {
        let server = self.servers[number].clone();
        for resource in RESOURCES {
            self.objects.insert((resource.into(), 7), server.write(resource));
        }
        self.check_all_readable();
    }

    fn carry_out(&mut self, step: &EncryptionStep) {
        step.carry_out(&mut self.stored, at(self.now)).unwrap();
    }

    fn settle(&mut self, wanted: &BTreeSet<String>, first: usize) {
        for _ in 0..100 {
            if !self.step(wanted, None, first) {
                return;
            }
        }
        panic!("it does not come to an end: {:?}", self.encryption());
    }

    fn heads(&self, resource: &str) -> BTreeSet<&[u8]> {
        let of_resource = self.objects.iter().filter(|((name, _), _)| name == resource);
        of_resource.map(|(_, head)| head.as_slice()).collect()
    }

    fn key(&self) -> String {
        self.encryption().target().unwrap().0.to_owned()
    }
}

#[test]
fn nothing_is_configured_and_nothing_is_done_without_encryption() {
    let none = Encryption::read(&BTreeMap::new()).unwrap();
    assert_eq!(none.configuration(), None);
    assert_eq!(none.next_step(&set(&[]), Some(at(1)), &Ok(())), EncryptionStep::Rest);
}

#[test]
fn objects_stay_readable_while_encryption_is_turned_on_rotated_and_turned_off() {
    for first in [0, 1] {
        let mut tenant = Tenant::new();
        let wanted = set(&["secrets"]);
        tenant.settle(&wanted, first);
        let key = tenant.key();
        assert_eq!(tenant.heads("secrets"), BTreeSet::from([head_of(&key).as_slice()]));
        assert!(
            tenant
                .heads("widgets.example.com")
                .iter()
                .all(|head| !head.starts_with(b"k8s:enc:"))
        );

        assert!(tenant.step(&wanted, Some(at(1000)), first));
        tenant.settle(&wanted, first);
        let rotated = tenant.key();
        assert_ne!(rotated, key);
        assert_eq!(tenant.heads("secrets"), BTreeSet::from([head_of(&rotated).as_slice()]));
        assert!(!tenant.stored.contains_key(&key));
        let request = RotationRequest::At(at(1000));
        assert_eq!(tenant.encryption().due_request(request, at(2000)), None);

        let both = set(&RESOURCES);
        tenant.settle(&both, first);
        assert_eq!(tenant.key(), rotated, "another resource needs no other key");
        assert_eq!(
            tenant.heads("widgets.example.com"),
            BTreeSet::from([head_of(&rotated).as_slice()])
        );

        tenant.settle(&set(&["widgets.example.com"]), first);
        assert!(
            tenant
                .heads("secrets")
                .iter()
                .all(|head| !head.starts_with(b"k8s:enc:"))
        );
        tenant.settle(&set(&[]), first);
        assert!(
            tenant.stored.keys().all(|name| name == STATE),
            "{:?}",
            tenant.stored.keys()
        );
        assert_eq!(tenant.encryption().configuration(), None);
        tenant.settle(&wanted, first);
        assert_ne!(tenant.key(), rotated, "a key that was deleted does not come back");
    }
}

#[test]
fn a_list_that_changes_at_any_step_leaves_every_object_readable() {
    let lists = [
        set(&[]),
        set(&["secrets"]),
        set(&RESOURCES),
        set(&["widgets.example.com"]),
    ];
    for before in &lists {
        for after in &lists {
            for steps in 0..24 {
                let mut tenant = Tenant::new();
                for number in 0..steps {
                    let due = (number == 5).then(|| at(1000));
                    tenant.step(before, due, number % 2);
                }
                tenant.settle(after, steps % 2);
                let encryption = tenant.encryption();
                for ((resource, _), head) in &tenant.objects {
                    assert!(encryption.is_current(resource, head));
                    assert_eq!(head.starts_with(b"k8s:enc:"), after.contains(resource));
                }
                let keys = tenant.stored.keys().filter(|name| name.starts_with(KEY)).count();
                assert_eq!(keys, usize::from(!after.is_empty()), "{before:?} {after:?} {steps}");
            }
        }
    }
}

#[test]
fn no_key_goes_before_the_api_servers_and_all_objects_were_looked_at() {
    let mut tenant = Tenant::new();
    let wanted = set(&["secrets"]);
    tenant.settle(&wanted, 0);
    tenant.step(&wanted, Some(at(1000)), 0);
    let late = Err("rollout".to_owned());
    for phase in [
        EncryptionPhase::Distributing,
        EncryptionPhase::Writing,
        EncryptionPhase::Rewriting,
    ] {
        assert_eq!(tenant.encryption().state().unwrap().phase, phase);
        let step = tenant.encryption().next_step(&wanted, None, &late);
        assert_eq!(step, EncryptionStep::Wait("rollout".into()), "{phase:?}");
        let keys = tenant.stored.keys().filter(|name| name.starts_with(KEY)).count();
        assert_eq!(keys, 2, "{phase:?}");
        let next = tenant.encryption().next_step(&wanted, None, &Ok(()));
        if phase == EncryptionPhase::Rewriting {
            assert_eq!(next, EncryptionStep::Rewrite);
        } else {
            tenant.carry_out(&next);
        }
    }
    // Another request does not begin before this one has ended.
    let step = tenant.encryption().next_step(&wanted, Some(at(2000)), &Ok(()));
    assert_eq!(step, EncryptionStep::Rewrite);
}

#[test]
fn a_tenant_without_objects_writes_encrypted_from_its_first_start_on() {
    let mut stored = BTreeMap::new();
    let first = Change {
        resources: set(&["secrets"]),
        requested_at: None,
        begins_with: EncryptionPhase::Rewriting,
    };
    EncryptionStep::Begin(first).carry_out(&mut stored, at(1)).unwrap();
    let server = Server::new(&stored);
    assert!(server.write("secrets").starts_with(SECRETBOX.as_bytes()));
    assert!(server.can_read("secrets", b"k8s\0"));
    assert_eq!(server.write("configmaps"), b"k8s\0");
    let text = Encryption::read(&stored).unwrap().configuration().unwrap();
    assert_eq!(stored.get(CONFIGURATION), Some(&text));
    let read: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(read["kind"], "EncryptionConfiguration");
}

#[test]
fn a_key_that_was_restored_is_read_with_and_then_deleted_again() {
    let mut tenant = Tenant::new();
    let wanted = set(&["secrets"]);
    tenant.settle(&wanted, 0);
    let key = tenant.key();
    let restored = key_name(RESTORED);
    let head = head_of(&restored);
    assert!(!tenant.encryption().can_read(&head));
    tenant.stored.insert(restored.clone(), RESTORED.into());
    // As after a restore of etcd: API servers start when control runs again.
    tenant.servers = [Server::new(&tenant.stored), Server::new(&tenant.stored)];
    tenant.objects.insert(("secrets".into(), 0), head);
    tenant.check_all_readable();
    tenant.settle(&wanted, 0);
    assert_eq!(tenant.heads("secrets"), BTreeSet::from([head_of(&key).as_slice()]));
    assert!(!tenant.stored.contains_key(&restored));
}

#[test]
fn objects_of_a_backup_are_decrypted_before_a_restored_key_goes_although_nothing_is_encrypted_any_more() {
    let mut tenant = Tenant::new();
    tenant.settle(&set(&RESOURCES), 0);
    tenant.settle(&set(&[]), 0);
    let restored = key_name(RESTORED);
    tenant.stored.insert(restored.clone(), RESTORED.into());
    tenant.servers = [Server::new(&tenant.stored), Server::new(&tenant.stored)];
    for resource in RESOURCES {
        tenant.objects.insert((resource.into(), 0), head_of(&restored));
    }
    tenant.check_all_readable();
    tenant.settle(&set(&[]), 0);
    assert!(!tenant.stored.contains_key(&restored));
    assert!(tenant.objects.values().all(|head| !head.starts_with(b"k8s:enc:")));
    assert_eq!(tenant.encryption().configuration(), None);
}

#[test]
fn objects_of_a_backup_of_a_resource_that_is_no_longer_listed_are_read_and_lose_no_key() {
    let mut tenant = Tenant::new();
    let wanted = set(&["secrets"]);
    tenant.settle(&set(&RESOURCES), 0);
    tenant.settle(&wanted, 0);
    let head = head_of(&tenant.key());
    tenant.objects.insert(("widgets.example.com".into(), 0), head.clone());
    tenant.check_all_readable();
    assert!(tenant.step(&wanted, Some(at(1000)), 0));
    tenant.settle(&wanted, 0);
    assert!(!tenant.heads("widgets.example.com").contains(head.as_slice()));
}

#[test]
fn keys_of_a_backup_without_a_state_are_kept_until_nothing_needs_them() {
    for wanted in [set(&[]), set(&["widgets.example.com"])] {
        let mut tenant = Tenant::new();
        let restored = key_name(RESTORED);
        tenant.stored.insert(restored.clone(), RESTORED.into());
        let step = tenant.encryption().next_step(&wanted, None, &Ok(()));
        assert!(matches!(step, EncryptionStep::Begin(_)), "{step:?}");
        tenant.carry_out(&step);
        tenant.servers = [Server::new(&tenant.stored), Server::new(&tenant.stored)];
        tenant.objects.insert(("secrets".into(), 0), head_of(&restored));
        tenant.check_all_readable();
        tenant.settle(&wanted, 0);
        assert!(!tenant.stored.contains_key(&restored));
        assert!(
            tenant
                .heads("secrets")
                .iter()
                .all(|head| !head.starts_with(b"k8s:enc:"))
        );
    }
}

#[test]
fn keys_and_state_are_put_back_and_keys_that_somebody_has_added_stay() {
    let mut tenant = Tenant::new();
    tenant.settle(&set(&["secrets"]), 0);
    let older = tenant.stored.clone();
    tenant.step(&set(&["secrets"]), Some(at(1000)), 0);
    tenant.settle(&set(&["secrets"]), 0);
    let known = tenant.stored.clone();
    assert_eq!(keep(&known, &mut known.clone()), Kept::default());

    let mut restored = older.clone();
    let kept = keep(&known, &mut restored);
    assert!(kept.is_changed && kept.has_further_keys);
    let read = Encryption::read(&restored).unwrap();
    assert_eq!(read.state(), tenant.encryption().state());
    assert_eq!(read.key_names().len(), 2);

    let mut emptied = BTreeMap::from([("server-ca.crt".to_owned(), "x".to_owned())]);
    let kept = keep(&known, &mut emptied);
    assert!(kept.is_changed && !kept.has_further_keys);
    assert_eq!(Encryption::read(&emptied).unwrap(), tenant.encryption());
    assert!(!keep(&BTreeMap::new(), &mut older.clone()).is_changed);
}

#[test]
fn a_key_that_is_missing_or_another_one_is_an_error() {
    let mut tenant = Tenant::new();
    tenant.settle(&set(&["secrets"]), 0);
    let key = tenant.key();
    let mut other = tenant.stored.clone();
    other.insert(key.clone(), RESTORED.into());
    assert!(matches!(Encryption::read(&other), Err(EncryptionError::Damaged(_))));
    let mut missing = tenant.stored.clone();
    missing.remove(&key);
    let error = Encryption::read(&missing).unwrap_err();
    assert!(error.to_string().contains(&key), "{error}");
    let mut damaged = tenant.stored.clone();
    damaged.insert(STATE.into(), "{".into());
    assert!(matches!(Encryption::read(&damaged), Err(EncryptionError::Damaged(_))));
    let debug = format!("{:?}", tenant.encryption());
    assert!(debug.contains(&key) && !debug.contains(&tenant.stored[&key]), "{debug}");
}

#[test]
fn the_key_of_an_object_is_in_what_is_stored() {
    assert_eq!(
        key_of(b"k8s:enc:secretbox:v1:encryption-key-a:cipher").as_deref(),
        Some("encryption-key-a")
    );
    assert_eq!(key_of(b"k8s:enc:other").as_deref(), Some("of an unknown provider"));
    assert_eq!(key_of(b"k8s\0plain"), None);
}

#[test]
fn objects_are_found_where_api_servers_store_them() {
    assert_eq!(folder("secrets"), "secrets/");
    assert_eq!(folder("widgets.example.com"), "example.com/widgets/");
}

#[test]
fn an_api_server_gets_the_file_and_its_flag_only_if_something_is_encrypted() {
    let mut files = BTreeMap::new();
    assert_eq!(for_api_server(&Encryption::default(), &mut files), None);
    assert!(files.is_empty());
    let mut tenant = Tenant::new();
    tenant.settle(&set(&["secrets"]), 0);
    let flag = for_api_server(&tenant.encryption(), &mut files).unwrap();
    let (file, text) = files.pop_first().unwrap();
    assert_eq!(flag, format!("--encryption-provider-config=$(FILES)/{file}"));
    assert_eq!(Some(text), tenant.encryption().configuration());
}

#[test]
fn the_key_of_an_object_that_cannot_be_read_has_a_name() {
    assert_eq!(
        describe_key(b"k8s:enc:secretbox:v1:encryption-key-a:\xff\x00"),
        "encryption-key-a"
    );
    assert_eq!(describe_key(b"k8s:enc:"), "of an unknown provider");
}
