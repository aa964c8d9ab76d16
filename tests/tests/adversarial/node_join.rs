//! Certificates of nodes: what the credential of a node, that of a machine which joins the host (a bootstrap token), and the admin of a tenant get
//! signed. The host here approves requests as kubeadm sets it up.

use crate::{
    credentials::{crossed, host_kubeconfig, try_to_list},
    shared::{attacker, attacker_and_victim},
};
use berth_pki::{
    Certificate, CertificateAuthority, LeafRequest, Usage,
    kubeconfig::{Credential, KubeconfigRequest, kubeconfig},
};
use berth_tests::{
    objects::{apply, nodes_of_tenant},
    tenant::{Tenant, patient},
    test_cluster::{CONTROL_USER, TestCluster},
    token::{client as with_token, request_of},
    wait::{SOON, until},
};
use k8s_openapi::{
    ByteString,
    api::{
        certificates::v1::CertificateSigningRequest,
        core::v1::{Node, Pod, Secret, ServiceAccount},
        rbac::v1::ClusterRoleBinding,
    },
};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use serde_json::json;
use std::{fmt::Debug, sync::Arc, time::Duration};

/// The signer of certificates with which kubelets call the API server.
const KUBELET_CLIENT: &str = "kubernetes.io/kube-apiserver-client-kubelet";
/// The signer of certificates that kubelets show.
const KUBELET_SERVING: &str = "kubernetes.io/kubelet-serving";
/// The signer of certificates of all other clients.
const CLIENT: &str = "kubernetes.io/kube-apiserver-client";

/// A node of another team.
const OTHER_NODE: &str = "system:node:gpu-l40s-01";
const NODES: &str = "system:nodes";
const MASTERS: &str = "system:masters";
/// The group of bootstrap tokens that kubeadm makes.
const BOOTSTRAPPERS: &str = "system:bootstrappers:kubeadm:default-node-token";

/// Names of kubeadm's bindings, with the roles and the groups.
const OF_KUBEADM: [(&str, &str, &str); 3] = [
    ("kubeadm:kubelet-bootstrap", "system:node-bootstrapper", BOOTSTRAPPERS),
    (
        "kubeadm:node-autoapprove-bootstrap",
        "system:certificates.k8s.io:certificatesigningrequests:nodeclient",
        BOOTSTRAPPERS,
    ),
    (
        "kubeadm:node-autoapprove-certificate-rotation",
        "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient",
        NODES,
    ),
];

/// A certificate that somebody asks for.
struct Wanted<'a> {
    /// Name of the request.
    name: &'a str,
    signer: &'a str,
    user: &'a str,
    group: &'a str,
}

impl Wanted<'_> {
    fn request(&self) -> CertificateSigningRequest {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, self.user);
        params.distinguished_name.push(DnType::OrganizationName, self.group);
        let request = params.serialize_request(&KeyPair::generate().unwrap()).unwrap();
        let purpose = if self.signer == KUBELET_SERVING {
            "server auth"
        } else {
            "client auth"
        };
        serde_json::from_value(json!({
            "metadata": {"name": self.name},
            "spec": {
                "request": ByteString(request.pem().unwrap().into_bytes()), "signerName": self.signer,
                "usages": ["digital signature", purpose],
            },
        }))
        .unwrap()
    }

    async fn create(&self, client: &Client) -> kube::Result<CertificateSigningRequest> {
        requests(client).create(&PostParams::default(), &self.request()).await
    }
}

fn requests(client: &Client) -> Api<CertificateSigningRequest> {
    Api::all(client.clone())
}

/// Asserts that an API server refuses something, with this in its message.
fn expect_forbidden<T: Debug>(message: &str, result: kube::Result<T>) {
    match result {
        Err(kube::Error::Api(status)) => assert!(
            status.code == 403 && status.message.contains(message),
            "{message}: another answer: {status:?}"
        ),
        other => panic!("{message}: {other:?}"),
    }
}

fn has_condition(request: &CertificateSigningRequest, kind: &str) -> bool {
    let conditions = request.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.is_some_and(|conditions| conditions.iter().any(|condition| condition.type_ == kind))
}

fn is_signed(request: &CertificateSigningRequest) -> bool {
    let certificate = request.status.as_ref().and_then(|status| status.certificate.as_ref());
    certificate.is_some_and(|certificate| !certificate.0.is_empty())
}

async fn until_request(client: &Client, name: &str, what: &str, holds: impl Fn(&CertificateSigningRequest) -> bool) {
    until(&format!("the request {name} is {what}"), SOON, async || {
        let request = requests(client).get(name).await.map_err(|error| error.to_string())?;
        if holds(&request) {
            Ok(())
        } else {
            Err(format!("{:?}", request.status))
        }
    })
    .await;
}

async fn approve(client: &Client, name: &str) -> kube::Result<CertificateSigningRequest> {
    let approved = json!({"type": "Approved", "status": "True", "reason": "Test", "message": "by hand"});
    let patch = Patch::Merge(json!({"status": {"conditions": [approved]}}));
    requests(client)
        .patch_approval(name, &PatchParams::default(), &patch)
        .await
}

/// Asserts that nobody has approved or signed these requests, and deletes them.
async fn expect_untouched(admin: &Client, names: &[&str]) {
    for name in names {
        let request = requests(admin).get(name).await.unwrap();
        assert!(
            !has_condition(&request, "Approved") && !is_signed(&request),
            "{name}: {:?}",
            request.status
        );
    }
    delete(admin, names).await;
}

async fn delete(admin: &Client, names: &[&str]) {
    for name in names {
        requests(admin).delete(name, &DeleteParams::default()).await.unwrap();
    }
}

/// Lets the host approve the requests that a host of kubeadm approves.
async fn bind_as_kubeadm(host: &TestCluster) {
    const GROUP: &str = "rbac.authorization.k8s.io";
    for (name, role, group) in OF_KUBEADM {
        let binding = json!({
            "apiVersion": format!("{GROUP}/v1"), "kind": "ClusterRoleBinding", "metadata": {"name": name},
            "roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": role},
            "subjects": [{"apiGroup": GROUP, "kind": "Group", "name": group}],
        });
        apply(&host.client, "", &binding).await.unwrap();
    }
}

async fn unbind(host: &TestCluster) {
    let bindings: Api<ClusterRoleBinding> = Api::all(host.client.clone());
    for (name, _, _) in OF_KUBEADM {
        bindings.delete(name, &DeleteParams::default()).await.unwrap();
    }
}

/// Root on a node of a tenant asks for more than a new certificate of the node.
pub(crate) async fn a_node_gets_no_certificate_but_its_own(host: Arc<TestCluster>) {
    let (tenant, victim) = attacker_and_victim(&host).await;
    let node = nodes_of_tenant(&host.client, tenant.id.slug()).await.remove(0);
    let own = format!("system:node:{node}");
    bind_as_kubeadm(&host).await;
    let kubelet = patient(&host.kubeconfig_for(&own, &[NODES]).unwrap()).await;
    for (signer, user, group, message) in [
        (KUBELET_CLIENT, OTHER_NODE, NODES, "can only create a node CSR with CN="),
        (
            KUBELET_SERVING,
            OTHER_NODE,
            NODES,
            "can only create a node CSR with CN=",
        ),
        (
            KUBELET_CLIENT,
            CONTROL_USER,
            NODES,
            "can only create a node CSR with CN=",
        ),
        (CLIENT, own.as_str(), MASTERS, "system:masters group is not allowed"),
    ] {
        let wanted = Wanted {
            name: "refused",
            signer,
            user,
            group,
        };
        expect_forbidden(message, wanted.create(&kubelet).await);
    }
    let pending = ["node-in-masters", "node-as-control", "node-as-another"];
    for (name, (signer, user, group)) in pending.into_iter().zip([
        (KUBELET_CLIENT, own.as_str(), MASTERS),
        (CLIENT, CONTROL_USER, "platform"),
        (CLIENT, OTHER_NODE, NODES),
    ]) {
        let wanted = Wanted {
            name,
            signer,
            user,
            group,
        };
        wanted.create(&kubelet).await.unwrap();
        expect_forbidden("certificatesigningrequests", approve(&kubelet, name).await);
    }
    // As kubelets renew theirs: who approves and signs has seen the others by then.
    let renewed = Wanted {
        name: "node-itself",
        signer: KUBELET_CLIENT,
        user: &own,
        group: NODES,
    };
    renewed.create(&kubelet).await.unwrap();
    until_request(&host.client, "node-itself", "signed", is_signed).await;
    // Somebody who approves everything: the signer of kubelets signs for no other group.
    approve(&host.client, "node-in-masters").await.unwrap();
    until_request(&host.client, "node-in-masters", "refused by its signer", |request| {
        has_condition(request, "Failed") && !is_signed(request)
    })
    .await;
    expect_untouched(&host.client, &pending[1..]).await;
    delete(&host.client, &["node-in-masters", "node-itself"]).await;
    unbind(&host).await;
    what_is_of_others(&host, &kubelet, &victim).await;
    for tenant in [&tenant, &victim] {
        let at_tenant = crossed(&host.kubeconfig_for(&own, &[NODES]).unwrap(), &tenant.kubeconfig).await;
        assert_eq!(
            try_to_list(&at_tenant).await,
            401,
            "a node of the host at {}",
            tenant.name
        );
    }
}

/// Secrets, tokens and Nodes that are not of this node.
async fn what_is_of_others(host: &TestCluster, kubelet: &Client, victim: &Tenant) {
    let workloads = victim.id.workload_namespace();
    let control_plane = victim.id.control_plane_namespace();
    for namespace in [workloads.as_str(), control_plane.as_str(), "berth-system"] {
        let secrets: Api<Secret> = Api::namespaced(kubelet.clone(), namespace);
        expect_forbidden("secrets", secrets.list(&ListParams::default()).await);
        expect_forbidden("secrets", secrets.get("pki").await);
        let accounts: Api<ServiceAccount> = Api::namespaced(kubelet.clone(), namespace);
        // As for a pod that is on no node.
        let request = request_of(&Pod::default());
        let token = accounts
            .create_token_request("default", &PostParams::default(), &request)
            .await;
        expect_forbidden("", token);
    }
    let nodes: Api<Node> = Api::all(kubelet.clone());
    let (_, other) = OTHER_NODE.rsplit_once(':').unwrap();
    assert!(Api::<Node>::all(host.client.clone()).get(other).await.is_ok());
    let ready = Patch::Merge(json!({"metadata": {"annotations": {"example.com/x": "y"}}}));
    expect_forbidden("nodes", nodes.patch(other, &PatchParams::default(), &ready).await);
    expect_forbidden(
        "nodes",
        nodes.patch_status(other, &PatchParams::default(), &ready).await,
    );
}

/// Somebody has found the token by which machines join the host.
pub(crate) async fn a_bootstrap_token_gets_certificates_of_kubelets_alone(host: Arc<TestCluster>) {
    let tenant = attacker(&host).await;
    bind_as_kubeadm(&host).await;
    let machine = host
        .kubeconfig_for("system:bootstrap:07401b", &[BOOTSTRAPPERS])
        .unwrap();
    let at_tenant = crossed(&machine, &tenant.kubeconfig).await;
    assert_eq!(try_to_list(&at_tenant).await, 401, "a joining machine at a tenant");
    let machine = patient(&machine).await;
    until("a joining machine has rights", SOON, async || {
        requests(&machine).list(&ListParams::default()).await
    })
    .await;
    assert_eq!(try_to_list(&machine).await, 403);
    let secrets: Api<Secret> = Api::all(machine.clone());
    expect_forbidden("secrets", secrets.list(&ListParams::default()).await);
    let masters = Wanted {
        name: "refused",
        signer: CLIENT,
        user: "kubernetes-admin",
        group: MASTERS,
    };
    expect_forbidden("system:masters group is not allowed", masters.create(&machine).await);
    let pending = ["machine-in-masters", "machine-as-control", "machine-as-client"];
    for (name, (signer, user, group)) in pending.into_iter().zip([
        (KUBELET_CLIENT, "system:node:new-1", MASTERS),
        (KUBELET_CLIENT, CONTROL_USER, NODES),
        (CLIENT, "system:node:new-1", NODES),
    ]) {
        let wanted = Wanted {
            name,
            signer,
            user,
            group,
        };
        wanted.create(&machine).await.unwrap();
        expect_forbidden("certificatesigningrequests", approve(&machine, name).await);
    }
    let joining = Wanted {
        name: "machine-itself",
        signer: KUBELET_CLIENT,
        user: "system:node:new-1",
        group: NODES,
    };
    joining.create(&machine).await.unwrap();
    until_request(&host.client, "machine-itself", "signed", is_signed).await;
    expect_untouched(&host.client, &pending).await;
    delete(&host.client, &["machine-itself"]).await;
    unbind(&host).await;
}

/// The admin of a tenant asks in the tenant, approves it there, makes tokens by which nodes would join, and certificates of an authority of its own.
pub(crate) async fn a_tenants_admin_gets_nothing_signed(host: Arc<TestCluster>) {
    let (tenant, victim) = attacker_and_victim(&host).await;
    let admin = &tenant.client;
    let approved = ["as-control", "as-api-server", "as-master", "as-server"];
    for (name, (signer, user, group)) in approved.into_iter().zip([
        (CLIENT, "berth:control", "berth:tenant-admins"),
        (CLIENT, "system:apiserver", "system:authenticated"),
        (KUBELET_CLIENT, OTHER_NODE, MASTERS),
        (KUBELET_SERVING, OTHER_NODE, NODES),
    ]) {
        let wanted = Wanted {
            name,
            signer,
            user,
            group,
        };
        wanted.create(admin).await.unwrap();
        approve(admin, name).await.unwrap();
    }
    // The tenant's own controller approves this one, as its admin has all rights: controllers have seen the others by then.
    let node = Wanted {
        name: "as-node",
        signer: KUBELET_CLIENT,
        user: OTHER_NODE,
        group: NODES,
    };
    node.create(admin).await.unwrap();
    until_request(admin, "as-node", "approved", |request| {
        has_condition(request, "Approved")
    })
    .await;

    join_with_a_token(&host, &tenant, &victim).await;
    for (user, group) in [
        (OTHER_NODE, NODES),
        ("kubernetes-admin", MASTERS),
        (CONTROL_USER, NODES),
    ] {
        let forged = forged_kubeconfig(user, group);
        for target in [&tenant.kubeconfig, &victim.kubeconfig, &host_kubeconfig(&host)] {
            let code = try_to_list(&crossed(&forged, target).await).await;
            assert_eq!(code, 401, "{user} of an authority of the admin's own");
        }
    }
    for name in approved.into_iter().chain(["as-node"]) {
        let request = requests(admin).get(name).await.unwrap();
        assert!(!is_signed(&request), "{name}: {:?}", request.status);
    }
    delete(admin, &approved).await;
    delete(admin, &["as-node"]).await;
}

/// A token in the form of those by which nodes join a cluster of kubeadm.
async fn join_with_a_token(host: &TestCluster, tenant: &Tenant, victim: &Tenant) {
    let (id, secret) = ("07401b", "f395accd246ae52d");
    let token = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": format!("bootstrap-token-{id}")},
        "type": "bootstrap.kubernetes.io/token",
        "stringData": {
            "token-id": id, "token-secret": secret, "usage-bootstrap-authentication": "true",
            "auth-extra-groups": BOOTSTRAPPERS,
        },
    });
    apply(&tenant.client, "kube-system", &token).await.unwrap();
    for target in [&tenant.kubeconfig, &victim.kubeconfig, &host_kubeconfig(host)] {
        let joining = with_token(target, &format!("{id}.{secret}")).await;
        assert_eq!(try_to_list(&joining).await, 401, "a token that the tenant's admin made");
    }
    let secrets: Api<Secret> = Api::namespaced(tenant.client.clone(), "kube-system");
    let name = format!("bootstrap-token-{id}");
    secrets.delete(&name, &DeleteParams::default()).await.unwrap();
}

/// A certificate for a user, of an authority that calls itself like those of clusters.
fn forged_kubeconfig(user: &str, group: &str) -> String {
    let hour = Duration::from_secs(3600);
    let authority = CertificateAuthority::create("kubernetes", hour).unwrap();
    let issued = authority.issue(&LeafRequest {
        common_name: user.into(),
        organizations: vec![group.into()],
        ..LeafRequest::new(Usage::Client, hour)
    });
    let Certificate { cert_pem, key_pem } = issued.unwrap();
    // The server and its authority are those of whom it is tried at.
    kubeconfig(&KubeconfigRequest {
        cluster_name: "forged".into(),
        server: "https://forged.example.com".into(),
        ca_pem: authority.cert_pem().into(),
        user: Credential::ClientCertificate { cert_pem, key_pem },
        namespace: None,
    })
    .unwrap()
}
