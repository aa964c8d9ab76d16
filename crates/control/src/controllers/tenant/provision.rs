//! The steps that bring an accepted tenant to life, each of which adds its finding.

use super::{
    bootstrap, definitions, dns, exposure, host_objects, keys, node_groups, publish, service_range,
    settings::{self, Settings},
    state::{Findings, TenantMemory},
    usage,
};
use crate::{
    apply::optional,
    context::{Context, Key},
    control_plane::{
        API_SERVER, Authorities, CONTROLLER_MANAGER, COREDNS, Component, ControlPlaneInput, DatastoreInput, DnsInput,
        Endpoints, Leaf, SCHEDULER, SYNCER, ServiceRange, render_components,
    },
    error::{ReconcileError, api},
    network::{self, NetworkIsolation},
    nodes::NodeRecord,
    runtime::{ComponentState, Owner},
};
use berth_api::{
    NetworkLimits, TenantCluster,
    conditions::{ACCEPTED, CONTROL_PLANE_READY, DATASTORE_READY, Finding, SYNCER_READY},
    dns_server, labels,
    names::TenantId,
    policy_annotations, ranges,
};
use berth_pki::{Usage, kubeconfig::Credential};
use berth_sync_rules::admission::configuration::configuration;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Secret};
use kube::{Api, ResourceExt};
use std::{sync::Arc, time::Duration};
use tokio::{io::AsyncReadExt, io::AsyncWriteExt, net::TcpStream};

/// Time the syncer may take to answer a probe.
const SYNCER_PROBE_TIMEOUT: Duration = Duration::from_secs(2);
/// Pause before a syncer that is not ready yet is asked again.
const SYNCER_PROBE: Duration = Duration::from_millis(200);

/// Does what can be done now. What must be waited for puts the tenant back into the queue by itself.
///
/// # Errors
/// A step failed. The findings so far are kept.
#[expect(
    clippy::too_many_lines,
    reason = "one step after the other, in the order in which a tenant comes to life"
)]
pub(super) async fn run(
    context: &Context,
    memory: &TenantMemory,
    cluster: &TenantCluster,
    tenant: &TenantId,
    settings: &Settings,
    key: &Key,
    findings: &mut Findings,
) -> Result<(), ReconcileError> {
    let host_ranges = service_range::host_ranges(context).await?;
    let host_network = network::read_host_network(context.network(), host_ranges.all()).await?;
    let priorities = context.stores.priority_classes.state();
    let default_priority = priorities.iter().find(|class| class.global_default == Some(true));
    let mut annotations = policy_annotations::annotations(
        &settings.sync,
        settings.class_name(),
        default_priority.map(|class| class.name_any()).as_deref(),
    );
    let blocked = host_network.blocked_with(&ranges::blocking(&settings.class_network.blocked_cidrs));
    let limits = network::network_limits(&settings.network, &settings.class_network, &blocked);
    annotations.extend(policy_annotations::of_network(&limits));
    for namespace in host_objects::namespaces(cluster, tenant, &annotations) {
        memory.host.apply(&namespace).await?;
    }
    settings::record(memory, cluster, tenant, settings).await?;
    let authorities = keys::authorities(context, memory, cluster, tenant).await?;
    context.datastore.prepare(tenant).await?;
    findings.add(Finding::yes(
        DATASTORE_READY,
        "Prepared",
        "user, role and key range exist",
    ));

    let labels = host_objects::tenant_labels(cluster, tenant);
    let owner = Owner {
        tenant,
        labels: &labels,
        host: &memory.host,
    };
    let (mut endpoints, service_range) = service_range::ensure(context, owner, cluster, &host_ranges).await?;
    let exposed = exposure::ensure(context, owner, cluster, settings, &mut endpoints).await?;
    let isolation = NetworkIsolation {
        tenant,
        labels: labels.clone(),
        allowed: &settings.network,
        host: &host_network,
        blocked: &blocked,
        uses_pods: context.runtime.uses_pods(),
        endpoints: &endpoints,
        dns_servers: settings
            .dns
            .upstreams
            .iter()
            .filter_map(|text| dns_server(text))
            .collect(),
        webhook_hosts: &settings.class_network.api_server_egress.hosts,
        datastore: context.datastore.endpoints(),
    };
    // Before anything runs, and before the syncer may make pods.
    network::apply_policies(context.network(), &memory.host, &isolation).await?;
    let server = endpoints.api_server.https_url();
    let ready = memory
        .connection
        .ready(&server, &authorities, &context.queue, key)
        .await;
    let ready = ready.map_err(|error| ReconcileError::Blocked {
        reason: "ConnectionError",
        message: format!("cannot make a client for the tenant: {error}"),
    })?;
    let place = (blocked.as_slice(), &endpoints, &service_range);
    let dns = dns::input(context, memory, cluster, tenant, settings, place, ready.as_ref()).await?;
    let components = components(
        context,
        memory,
        cluster,
        tenant,
        settings,
        &authorities,
        (&endpoints, &service_range, dns.as_ref(), &limits),
    )
    .await?;
    findings.endpoint = Some(endpoints.public.url.clone());
    let api_server = ensure(context, owner, &components, API_SERVER).await?;
    apply_identity(context, memory, cluster, tenant, settings).await?;
    let kubeconfig = publish_kubeconfig(context, memory, cluster, tenant, &authorities, &endpoints.public.url).await?;
    findings.has_kubeconfig = true;

    match &ready {
        None => findings.add(not_ready(&api_server)),
        Some(applier) => {
            let webhooks = configuration(&endpoints.admission.authority(), authorities.admission.cert_pem());
            let rules = context.kinds.rules(context, &settings.sync).await?;
            bootstrap::apply(applier, &rules, &host_ranges, &webhooks)
                .await
                .inspect_err(|_| applier.forget())?;
            definitions::publish(context, applier, &settings.sync.kinds).await?;
            if let Some(dns) = &dns {
                dns::publish(applier, dns.address).await?;
            }
            bring_up(context, owner, &components, findings).await?;
        }
    }
    findings.extend(exposed);
    // Only a kubeconfig that works is handed out.
    if findings
        .all()
        .iter()
        .all(|finding| finding.is_true() || finding.kind == ACCEPTED)
    {
        context.runtime.publish_kubeconfig(
            &cluster.namespace().unwrap_or_default(),
            &cluster.name_any(),
            &kubeconfig,
        )?;
    }
    // A syncer that is known to be down needs no asking.
    if !findings.all().iter().any(|finding| finding.kind == SYNCER_READY) {
        findings.add(syncer_finding(context, &endpoints, key).await);
    }

    // An API that is registered and does not answer hinders others, so it is once there is who answers.
    let answers = |finding: &Finding| finding.kind == SYNCER_READY && finding.is_true();
    if let Some(applier) = ready.filter(|_| findings.all().iter().any(answers)) {
        usage::publish(&applier, authorities.kubelet.cert_pem()).await?;
    }

    let nodes = owned_nodes(context, cluster);
    publish::publish(context, cluster, tenant, settings, &nodes).await?;
    let standings = cluster.uid().and_then(|uid| context.tenants.standing(&uid));
    let groups = node_groups::groups(&cluster.spec.node_groups, &nodes, standings.as_ref());
    findings.add(node_groups::finding(&cluster.spec.node_groups, &groups, &nodes));
    Ok(())
}

/// Renders the control plane with the stored certificates and stores those that are new.
async fn components(
    context: &Context,
    memory: &TenantMemory,
    cluster: &TenantCluster,
    tenant: &TenantId,
    settings: &Settings,
    authorities: &Authorities,
    (endpoints, service_range, dns, network): (&Endpoints, &ServiceRange, Option<&DnsInput>, &NetworkLimits),
) -> Result<Vec<Component>, ReconcileError> {
    let mut leaves = keys::leaves(context, memory, tenant, Timestamp::now()).await?;
    let datastore = DatastoreInput {
        endpoints: context.datastore.endpoints().to_vec(),
        ca_pem: context.datastore.ca_cert().to_owned(),
    };
    let input = ControlPlaneInput {
        tenant,
        version: &settings.version,
        class: settings.class_name(),
        scheduling: settings.scheduling,
        policy: &settings.sync,
        form: context.runtime.form(settings.replicas),
        network,
        endpoints,
        service_range,
        datastore: &datastore,
        host: &context.host,
        dns,
    };
    let components = render_components(&input, authorities, &mut leaves)?;
    leaves.issue(&authorities.client, "admin", &admin_leaf())?;
    keys::store_leaves(memory, cluster, tenant, leaves).await?;
    Ok(components)
}

async fn ensure(
    context: &Context,
    owner: Owner<'_>,
    components: &[Component],
    name: &str,
) -> Result<ComponentState, ReconcileError> {
    match components.iter().find(|component| component.name == name) {
        Some(component) => Ok(context.runtime.ensure(owner, component).await?),
        None => Ok(ComponentState::Down(format!("{name} was not rendered"))),
    }
}

async fn apply_identity(
    context: &Context,
    memory: &TenantMemory,
    cluster: &TenantCluster,
    tenant: &TenantId,
    settings: &Settings,
) -> Result<(), ReconcileError> {
    let rules = context.kinds.rules(context, &settings.sync).await?;
    let (account, roles) = host_objects::syncer_identity(cluster, tenant, &rules);
    memory.host.apply(&account).await?;
    for (role, binding) in &roles {
        memory.host.apply(role).await?;
        memory.host.apply(binding).await?;
    }
    let nodes = owned_nodes(context, cluster)
        .iter()
        .map(|node| node.name_any())
        .collect();
    let (role, binding) = host_objects::syncer_cluster_role(cluster, tenant, nodes);
    memory.host.apply(&role).await?;
    memory.host.apply(&binding).await?;
    Ok(())
}

fn admin_leaf() -> Leaf {
    Leaf::new("tenant-admin", Usage::Client).organizations(vec![bootstrap::ADMIN_GROUP.into()])
}

/// Writes the team's kubeconfig into the Secret beside the TenantCluster.
async fn publish_kubeconfig(
    context: &Context,
    memory: &TenantMemory,
    cluster: &TenantCluster,
    tenant: &TenantId,
    authorities: &Authorities,
    server: &str,
) -> Result<String, ReconcileError> {
    let mut leaves = keys::leaves(context, memory, tenant, Timestamp::now()).await?;
    let admin = leaves.issue(&authorities.client, "admin", &admin_leaf())?;
    let user = Credential::ClientCertificate {
        cert_pem: admin.cert_pem,
        key_pem: admin.key_pem,
    };
    let kubeconfig = authorities.kubeconfig(server, &cluster.name_any(), user)?;
    refuse_foreign_secret(context, cluster, tenant).await?;
    memory
        .host
        .apply(&host_objects::kubeconfig_secret(cluster, tenant, &kubeconfig))
        .await?;
    Ok(kubeconfig)
}

/// A Secret of the team's own that happens to have the kubeconfig's name is not overwritten.
async fn refuse_foreign_secret(
    context: &Context,
    cluster: &TenantCluster,
    tenant: &TenantId,
) -> Result<(), ReconcileError> {
    let namespace = cluster.namespace().unwrap_or_default();
    let name = host_objects::kubeconfig_secret_name(cluster);
    let secrets: Api<Secret> = Api::namespaced(context.client.clone(), &namespace);
    let existing = optional(secrets.get_metadata(&name).await).map_err(api("look for the kubeconfig Secret"))?;
    match existing {
        Some(secret) if secret.labels().get(labels::TENANT).map(String::as_str) != Some(tenant.slug()) => {
            Err(ReconcileError::Blocked {
                reason: "SecretExists",
                message: format!(
                    "Secret {namespace}/{name} exists and is not this tenant's; delete or rename it, or give the \
                     TenantCluster another name"
                ),
            })
        }
        _ => Ok(()),
    }
}

fn not_ready(api_server: &ComponentState) -> Finding {
    match api_server {
        ComponentState::Running => Finding::no(
            CONTROL_PLANE_READY,
            "Starting",
            "the API server was started and does not answer yet",
        ),
        ComponentState::Down(why) => Finding::no(CONTROL_PLANE_READY, "NotRunning", why.as_str()),
    }
}

/// With the API server and the bootstrap objects there: the programs that need them.
async fn bring_up(
    context: &Context,
    owner: Owner<'_>,
    components: &[Component],
    findings: &mut Findings,
) -> Result<(), ReconcileError> {
    let mut states = vec![ensure(context, owner, components, CONTROLLER_MANAGER).await?];
    if components.iter().any(|component| component.name == SCHEDULER) {
        states.push(ensure(context, owner, components, SCHEDULER).await?);
    } else {
        context.runtime.withdraw(owner.tenant, SCHEDULER).await?;
    }
    let syncer = ensure(context, owner, components, SYNCER).await?;
    if components.iter().any(|component| component.name == COREDNS) {
        states.push(ensure(context, owner, components, COREDNS).await?);
    }
    let down = states.into_iter().find_map(|state| match state {
        ComponentState::Running => None,
        ComponentState::Down(why) => Some(why),
    });
    findings.add(match down {
        None => Finding::yes(CONTROL_PLANE_READY, "Running", "the API server is ready"),
        Some(why) => Finding::no(CONTROL_PLANE_READY, "NotRunning", why),
    });
    if let ComponentState::Down(why) = syncer {
        findings.add(Finding::no(SYNCER_READY, "NotRunning", why));
    }
    Ok(())
}

/// Asks the syncer's `/readyz`.
async fn syncer_finding(context: &Context, endpoints: &Endpoints, key: &Key) -> Finding {
    let probe = probe_syncer(endpoints);
    match tokio::time::timeout(SYNCER_PROBE_TIMEOUT, probe).await {
        Ok(Ok(answer)) if answer.starts_with("HTTP/1.1 200") => {
            Finding::yes(SYNCER_READY, "InSync", "the syncer has listed both sides")
        }
        Ok(Ok(answer)) => {
            context.queue.add_after(key.clone(), SYNCER_PROBE);
            let body = answer
                .split_once("\r\n\r\n")
                .map_or("", |(_, body)| body)
                .trim()
                .to_owned();
            Finding::no(SYNCER_READY, "Starting", format!("the syncer is {body}"))
        }
        Ok(Err(_)) | Err(_) => {
            context.queue.add_after(key.clone(), SYNCER_PROBE);
            Finding::no(SYNCER_READY, "Starting", "the syncer does not answer yet")
        }
    }
}

/// One plain HTTP/1.1 request; the answer is a few bytes.
async fn probe_syncer(endpoints: &Endpoints) -> std::io::Result<String> {
    let admin = &endpoints.syncer_admin;
    let mut stream = TcpStream::connect((admin.host.as_str(), admin.port)).await?;
    stream
        .write_all(b"GET /readyz HTTP/1.1\r\nHost: syncer\r\nConnection: close\r\n\r\n")
        .await?;
    let mut answer = String::new();
    stream.take(4096).read_to_string(&mut answer).await?;
    Ok(answer)
}

/// Nodes whose record names this tenant.
pub(super) fn owned_nodes(context: &Context, cluster: &TenantCluster) -> Vec<Arc<Node>> {
    let uid = cluster.uid().unwrap_or_default();
    let mut nodes = context.stores.nodes.state();
    nodes.retain(|node| NodeRecord::read(node).is_some_and(|record| record.uid == uid));
    nodes.sort_by_key(|node| node.name_any());
    nodes
}
