//! Pods that run shell scripts, and how they ended.

use berth_api::is_pod_ready;
pub(crate) use berth_tests::wait::SOON;
use berth_tests::{
    kubectl::Kubectl,
    objects::{apply, phase},
    tenant::{Tenant, ensure_namespace},
    wait::until,
};
use k8s_openapi::api::core::v1::{ContainerState, Pod, ServiceAccount};
use kube::{Api, Client, api::PostParams};
use serde_json::{Value, json};

/// The image of all test pods, which is on every node.
pub(crate) const IMAGE: &str = "registry.k8s.io/e2e-test-images/agnhost:2.59";

/// A namespace of a tenant that belongs to one test.
pub(crate) struct Space {
    pub(crate) tenant: &'static Tenant,
    pub(crate) name: &'static str,
    pub(crate) client: Client,
    pub(crate) pods: Api<Pod>,
}

impl Space {
    /// Makes the namespace; pods can be created in it.
    pub(crate) async fn new(tenant: &'static Tenant, name: &'static str) -> Self {
        let client = tenant.client.clone();
        ensure_namespace(&client, name).await;
        let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), name);
        until("the namespace has its account", SOON, async || {
            accounts.get("default").await
        })
        .await;
        Self {
            pods: Api::namespaced(client.clone(), name),
            tenant,
            name,
            client,
        }
    }

    /// Applies an object.
    pub(crate) async fn apply(&self, object: Value) {
        if let Err(error) = apply(&self.client, self.name, &object).await {
            panic!("{}: {error}", object["metadata"]["name"]);
        }
    }

    /// An API for objects of a kind in the namespace.
    pub(crate) fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), self.name)
    }

    /// kubectl with the team's kubeconfig.
    pub(crate) fn kubectl(&self) -> Kubectl {
        Kubectl::of(self.tenant)
    }

    /// Runs a command in a pod, as `kubectl exec`, and returns what it printed. It may run more than once: any component on
    /// the way to a container may be too slow for the one before it.
    pub(crate) async fn exec(&self, pod: &str, command: &[&str]) -> String {
        let arguments = [&["exec", "-n", self.name, pod, "--"], command].concat();
        let kubectl = self.kubectl();
        until(&format!("kubectl {arguments:?} succeeds"), SOON, async || {
            let said = kubectl.run(&arguments).await;
            if said.success { Ok(said.out) } else { Err(said) }
        })
        .await
    }

    /// Creates a pod and waits until its container has ended.
    pub(crate) async fn run(&self, name: &str, spec: Value) -> Ended {
        self.create(name, spec).await;
        self.ended(name).await
    }

    /// Creates a pod.
    pub(crate) async fn create(&self, name: &str, spec: Value) {
        let pod = serde_json::from_value(pod(name, spec)).unwrap();
        self.pods.create(&PostParams::default(), &pod).await.unwrap();
    }

    /// Waits until a pod fulfils a condition.
    pub(crate) async fn until(&self, name: &str, what: &str, is_so: impl Fn(&Pod) -> bool) -> Pod {
        until(&format!("pod {name} {what}"), SOON, async || {
            match self.pods.get(name).await {
                Ok(pod) if is_so(&pod) => Ok(pod),
                Ok(pod) => Err(format!("{:?}", pod.status)),
                Err(error) => Err(error.to_string()),
            }
        })
        .await
    }

    /// Waits until a pod is ready.
    pub(crate) async fn ready(&self, name: &str) -> Pod {
        self.until(name, "is ready", is_pod_ready).await
    }

    /// Waits until a pod has succeeded or failed.
    pub(crate) async fn ended(&self, name: &str) -> Ended {
        let pod = self
            .until(name, "has ended", |pod| ["Succeeded", "Failed"].contains(&&*phase(pod)))
            .await;
        let terminated = state(&pod, "main").and_then(|state| state.terminated);
        let terminated = terminated.unwrap_or_else(|| panic!("{name} has no container that ended: {:?}", pod.status));
        Ended {
            phase: phase(&pod),
            code: terminated.exit_code,
            reason: terminated.reason.unwrap_or_default(),
            message: terminated.message.unwrap_or_default().trim().to_owned(),
        }
    }
}

/// How a pod's container `main` ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) phase: String,
    pub(crate) code: i32,
    pub(crate) reason: String,
    /// What the container wrote to `/dev/termination-log`; of a [`script`] all that it printed.
    pub(crate) message: String,
}

impl Ended {
    /// What the script printed; it must have succeeded.
    pub(crate) fn said(self) -> String {
        assert_eq!((&*self.phase, self.code), ("Succeeded", 0), "{self:?}");
        self.message
    }
}

/// A container `main` that runs a shell script; what it prints becomes the message of its end.
pub(crate) fn script(text: &str) -> Value {
    let text = format!("( {text}\n) >/dev/termination-log 2>&1");
    json!({"name": "main", "image": IMAGE, "command": ["/bin/sh", "-c", text]})
}

/// A container `main` that serves HTTP on port 8080 (`/hostname`, `/clientip`, `/shell?cmd=…` and more).
pub(crate) fn server() -> Value {
    // Once it is ready, it stays so, even when the machine stands still for a moment.
    json!({"name": "main", "image": IMAGE, "args": ["netexec", "--http-port=8080", "--udp-port=-1"],
           "readinessProbe": {"httpGet": {"path": "/hostname", "port": 8080},
                              "periodSeconds": 1, "timeoutSeconds": 10, "failureThreshold": 30}})
}

/// A pod that ends at once when it is deleted, and is not restarted.
pub(crate) fn pod(name: &str, spec: Value) -> Value {
    let mut whole = json!({"restartPolicy": "Never", "terminationGracePeriodSeconds": 1});
    merge(&mut whole, spec);
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": whole})
}

/// A pod's spec with one container.
pub(crate) fn only(container: impl Into<Value>) -> Value {
    let container = container.into();
    json!({"containers": [container]})
}

/// The container with more fields, or other ones.
pub(crate) fn with(mut container: Value, fields: Value) -> Value {
    merge(&mut container, fields);
    container
}

fn merge(whole: &mut Value, fields: Value) {
    if let (Value::Object(whole), Value::Object(fields)) = (whole, fields) {
        whole.extend(fields);
    }
}

/// The state of a container of any kind.
pub(crate) fn state(pod: &Pod, container: &str) -> Option<ContainerState> {
    let status = pod.status.as_ref()?;
    [
        &status.container_statuses,
        &status.init_container_statuses,
        &status.ephemeral_container_statuses,
    ]
    .into_iter()
    .flatten()
    .flatten()
    .find(|status| status.name == container)?
    .state
    .clone()
}
