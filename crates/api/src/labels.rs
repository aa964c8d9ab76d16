//! Labels, annotations, taints and finalizers that Berth reserves on host objects.
//!
//! Everything under [`RESERVED_PREFIX`] belongs to the platform: the syncer never copies such a key from a
//! tenant's object, whatever verb or subresource carries it.
//!
//! The reference is made of this file. The last line of each key's text says who sets it: Berth, the platform, a team, or Kubernetes. Constants that end
//! with a slash are families of keys.

/// Prefix of every label and annotation that only Berth itself sets on host objects.
pub const RESERVED_PREFIX: &str = "berth.dev/";

/// Who owns a host object or a node: the tenant's [slug](crate::names::TenantId::slug).
/// Also the key of the `NoExecute` taint on assigned nodes.
/// Set by: Berth.
pub const TENANT: &str = "berth.dev/tenant";
/// Name of the `TenantClass` a host object was made for.
/// Set by: Berth.
pub const CLASS: &str = "berth.dev/tenant-class";
/// Name of the `TenantCluster` an object was made for; information, never used to decide.
/// Set by: Berth.
pub const TENANT_NAME: &str = "berth.dev/tenant-name";
/// Namespace of the `TenantCluster` an object was made for; information, never used to decide.
/// Set by: Berth.
pub const TENANT_NAMESPACE: &str = "berth.dev/tenant-namespace";
/// State of a node's assignment; absent on a free node. The label is for people, the annotation of the same key decides.
/// Set by: Berth.
pub const NODE_STATE: &str = "berth.dev/state";
/// The state of a node that serves a tenant.
pub const NODE_STATE_ASSIGNED: &str = "Assigned";
/// Value of the taint [`TENANT`] on a node that is neither free nor serves a tenant: no pod of a tenant tolerates it.
pub const RECYCLING: &str = "recycling";
/// Annotation on a node: since when it is in its state (RFC 3339).
/// Set by: Berth.
pub const STATE_SINCE: &str = "berth.dev/state-since";
/// Annotation on a node: since when it serves its tenant (RFC 3339). In the first state after it has left its tenant, also if its scrub starts again: since when
/// it served that one, until [`LEFT_AT`].
/// Set by: Berth.
pub const ASSIGNED_SINCE: &str = "berth.dev/assigned-since";
/// Annotation on a node in the first state after it has left its tenant, also if its scrub starts again: when it left that one (RFC 3339).
/// Set by: Berth.
pub const LEFT_AT: &str = "berth.dev/left-at";
/// Annotation on a node: reason of its state, as text.
/// Set by: Berth.
pub const REASON: &str = "berth.dev/reason";
/// Annotation on a reserved node: how many nodes its group must have before it joins.
/// Set by: Berth.
pub const RESERVED_WITH: &str = "berth.dev/reserved-with";
/// Annotation on a cordoned node: when it is drained (RFC 3339).
/// Set by: Berth.
pub const DRAIN_AT: &str = "berth.dev/drain-at";
/// Annotation on a node between two tenants: the slug of the one that had it.
/// Set by: Berth.
pub const PREVIOUS_TENANT: &str = "berth.dev/previous-tenant";
/// Annotation on a node between two tenants: names this recycling of the node and its Jobs.
/// Set by: Berth.
pub const RECYCLING_ID: &str = "berth.dev/recycling-id";
/// Annotation on a node that could not be recycled: why.
/// Set by: Berth.
pub const QUARANTINE: &str = "berth.dev/quarantine";
/// Annotation on a node: the risks in its set-up, as the last validation found them that the node has passed, separated by `; `. `none`: it found none. The
/// node can have a tenant.
/// Set by: Berth.
pub const NODE_RISKS: &str = "berth.dev/risks";
/// Value of [`NODE_RISKS`] on a node without risks.
pub const NODE_RISKS_NONE: &str = "none";
/// Label of a blob in containerd's content store on a node, not of an object: the blob stays although no image needs it when the node's images are
/// removed. Any value.
/// Set by: platform.
pub const KEEP_CONTENT: &str = "berth.dev/keep";
/// Annotation on a quarantined node that was taken from its tenant, or left it, while it was not Ready: since when it is not Ready (RFC 3339). Once it is
/// Ready, it is scrubbed.
/// Set by: Berth.
pub const NOT_READY_SINCE: &str = "berth.dev/not-ready-since";
/// Annotation that sends a quarantined node through recycling again. Any value.
/// Set by: platform.
pub const RELEASE_QUARANTINE: &str = "berth.dev/release-quarantine";
/// Annotation on a node between two tenants: the labels that Berth changed so that the platform's own programs leave its GPUs, with their former values, as
/// `KEY=VALUE`, separated by commas. No value: the node did not have the label.
/// Set by: Berth.
pub const PAUSED_LABELS: &str = "berth.dev/paused-labels";
/// Annotation on a node between two tenants: the images of the programs that left its GPUs, separated by commas. They stay on the node.
/// Set by: Berth.
pub const PAUSED_IMAGES: &str = "berth.dev/paused-images";
/// Value of the labels in [`PAUSED_LABELS`] while the node is scrubbed.
pub const PAUSED_FOR_SCRUB: &str = "paused-for-berth-scrub";
/// Annotation on a Service of the platform that may select static pods of every node: `true`. Without it, those of the host's control plane only.
/// Set by: platform.
pub const ALLOW_STATIC_PODS: &str = "berth.dev/allow-static-pods";
/// Label of a volume of the host that may be bound to any claim of a tenant that it fits: `true`. Without it, claims get only volumes that were made
/// for them.
/// Set by: platform.
pub const ALLOW_ANY_CLAIM: &str = "berth.dev/allow-any-claim";
/// Annotation on a node that Berth cordoned: whether it was `people`'s cordon before, which stays, or is `berth`'s own.
/// Set by: Berth.
pub const CORDON: &str = "berth.dev/cordon";
/// Annotation on a node: what Berth wrote into the label `nvidia.com/device-plugin.config`, and what that was before, as `WRITTEN=FORMER`. No value: no
/// label. A free node in no pool that names a configuration gets the former one back.
/// Set by: Berth.
pub const CHANGED_DEVICE_PLUGIN_CONFIG: &str = "berth.dev/changed-device-plugin-config";
/// The same of the label `nvidia.com/mig.config`.
/// Set by: Berth.
pub const CHANGED_MIG_CONFIG: &str = "berth.dev/changed-mig-config";
/// Annotation on the Jobs that clean and check nodes: the node.
/// Set by: Berth.
pub const NODE: &str = "berth.dev/node";
/// Label of the Jobs that clean and check nodes, and of their pods; the value is `scrub` or `validate`.
/// Set by: Berth.
pub const NODE_JOB: &str = "berth.dev/node-job";
/// Label of the ConfigMap that marks a node as being in use, and of its Jobs; the value is `true`.
/// Set by: Berth.
pub const IN_USE_MARKER: &str = "berth.dev/in-use-marker";
/// Label of the ConfigMap that marks a node as being in use: a hash of what identifies the machine of the node.
/// Set by: Berth.
pub const MACHINE: &str = "berth.dev/machine";
/// Annotation on pods of control, by the chart: hash of the settings with which they started. Pods with other settings replace them.
/// Set by: Berth.
pub const SETTINGS_HASH: &str = "berth.dev/settings-hash";
/// Annotation on a Deployment of a control plane: hash of its spec as Berth applied it last. A Deployment that is rolled out says by it which one.
/// Set by: Berth.
pub const DEPLOYED_HASH: &str = "berth.dev/deployed-hash";
/// Annotation on a node: annotations for autoscalers that Berth set there, separated by commas. It takes these off again.
/// Set by: Berth.
pub const AUTOSCALER_ANNOTATIONS: &str = "berth.dev/autoscaler-annotations";
/// Label of placeholders, the pods that show demand to autoscalers; the value is the `HostNodePool`.
/// Set by: Berth.
pub const PLACEHOLDER: &str = "berth.dev/placeholder";
/// Label of placeholders: the node group they stand for, as a hash of tenant and node group. Placeholders of two node groups are
/// never on one node.
/// Set by: Berth.
pub const PLACEHOLDER_OWNER: &str = "berth.dev/placeholder-owner";
/// Label of placeholders: those with the same value are alike.
/// Set by: Berth.
pub const PLACEHOLDER_KIND: &str = "berth.dev/placeholder-kind";
/// Label of placeholders: the slug of the tenant that waits. For people; [`TENANT`] would make them the tenant's own pods.
/// Set by: Berth.
pub const PLACEHOLDER_TENANT: &str = "berth.dev/placeholder-tenant";
/// Annotation on placeholders: the pod or gang that waits.
/// Set by: Berth.
pub const PLACEHOLDER_DEMAND: &str = "berth.dev/placeholder-demand";
/// Name of the `HostNodePool` through which a node was assigned.
/// Set by: Berth.
pub const POOL: &str = "berth.dev/pool";
/// Name of the group in `TenantCluster.spec.nodeGroups` that a node was assigned to.
/// Set by: Berth.
pub const NODE_GROUP: &str = "berth.dev/node-group";
/// Annotation on an assigned node: UID of the owning `TenantCluster`. The label can be read by people, this decides.
/// Set by: Berth.
pub const OWNER_UID: &str = "berth.dev/owner-uid";
/// Annotation on the host Service of a tenant's API server: address of the tenant's DNS, which its running pods hold.
/// Set by: Berth.
pub const DNS_ADDRESS: &str = "berth.dev/dns-address";
/// Annotation of an assigned node: since when no pod that needs the node runs on it (RFC 3339).
/// Set by: Berth.
pub const IDLE_SINCE: &str = "berth.dev/idle-since";
/// Annotation of a node that serves a tenant: the most GPUs that it had since, as `RESOURCE=COUNT` with the resource of its pool. Quotas
/// count at least these.
/// Set by: Berth.
pub const RECORDED_GPUS: &str = "berth.dev/recorded-gpus";

/// Annotation of a tenant's pod: the gang that it belongs to. Pods of the same namespace that name the same gang start
/// together or not at all.
/// Set by: team.
pub const GANG_OF_TENANT: &str = "scheduling.berth.dev/gang";
/// Annotation of a tenant's pod: how many pods its gang has.
/// Set by: team.
pub const GANG_SIZE_OF_TENANT: &str = "scheduling.berth.dev/gang-size";
/// Annotation of a tenant's pod: [`GANG_TOPOLOGY_REQUIRED`] if all nodes of its gang must be of one topology domain.
/// Set by: team.
pub const GANG_TOPOLOGY_OF_TENANT: &str = "scheduling.berth.dev/gang-topology";
/// Annotation on a host pod: the gang that it belongs to, as the syncer understood it.
/// Set by: Berth.
pub const GANG: &str = "berth.dev/gang";
/// Annotation on a host pod: how many pods its gang has, as the syncer understood it.
/// Set by: Berth.
pub const GANG_SIZE: &str = "berth.dev/gang-size";
/// Annotation on a host pod: [`GANG_TOPOLOGY_REQUIRED`] if all nodes of its gang must be of one topology domain, as the syncer understood it.
/// Set by: Berth.
pub const GANG_TOPOLOGY: &str = "berth.dev/gang-topology";
/// Value of [`GANG_TOPOLOGY_OF_TENANT`] and [`GANG_TOPOLOGY`].
pub const GANG_TOPOLOGY_REQUIRED: &str = "required";

/// On a host node that several tenants may use at the same time: the shared `HostNodePool`. Pods find such nodes by it.
/// Set by: Berth.
pub const SHARED_POOL: &str = "berth.dev/shared-pool";
/// Annotation on a host node that several tenants used: the `HostNodePool` it was in. Such a node is scrubbed before it
/// is assigned to a tenant.
/// Set by: Berth.
pub const PREVIOUS_SHARED_POOL: &str = "berth.dev/previous-shared-pool";
/// Annotation on a host node that several tenants used: when it left its shared pool (RFC 3339). The drain of its pods began
/// then.
/// Set by: Berth.
pub const SHARED_UNTIL: &str = "berth.dev/shared-until";
/// Label of host pods that may run on shared nodes; the value is [`SHARED_NODES_ALLOWED`].
/// Set by: Berth.
pub const SHARED_NODES: &str = "berth.dev/shared-nodes";
/// Value of [`SHARED_NODES`].
pub const SHARED_NODES_ALLOWED: &str = "allowed";
/// Annotation on a host pod that may run on shared nodes: the shared pools that it was made for, separated by commas.
/// Set by: Berth.
pub const SHARED_POOLS: &str = "berth.dev/shared-pools";
/// What part of a tenant a host namespace holds: [`ROLE_CONTROL_PLANE`] or [`ROLE_WORKLOADS`].
/// Set by: Berth.
pub const ROLE: &str = "berth.dev/role";
/// Value of [`ROLE`] on the namespace of a tenant's control plane.
pub const ROLE_CONTROL_PLANE: &str = "control-plane";
/// Value of [`ROLE`] on the namespace of a tenant's workloads.
pub const ROLE_WORKLOADS: &str = "workloads";

/// On every host object that a syncer made; the value is `syncer`. On objects that control made in a tenant and takes care
/// of: [`MANAGED_BY_CONTROL`]. On objects in a tenant that nobody there may change or delete: [`MANAGED_BY_PLATFORM`].
/// Set by: Berth.
pub const MANAGED_BY: &str = "berth.dev/managed-by";
/// Value of [`MANAGED_BY`].
pub const MANAGED_BY_SYNCER: &str = "syncer";
/// Value of [`MANAGED_BY`] in tenants.
pub const MANAGED_BY_CONTROL: &str = "control";
/// Value of [`MANAGED_BY`] on the platform's objects in tenants.
pub const MANAGED_BY_PLATFORM: &str = "platform";
/// Label of the platform's objects in tenants: the manifest of the class that they come from.
/// Set by: Berth.
pub const MANIFEST: &str = "berth.dev/manifest";
/// Annotation on the platform's objects in tenants: version of the manifest that they come from.
/// Set by: Berth.
pub const MANIFEST_VERSION: &str = "berth.dev/manifest-version";
/// Label of ConfigMaps in Berth's namespace that classes may name in `manifests`; the value is [`MANIFESTS_ALLOWED`].
/// Set by: platform.
pub const MANIFESTS: &str = "berth.dev/manifests";
/// Value of [`MANIFESTS`].
pub const MANIFESTS_ALLOWED: &str = "true";
/// Label of ClusterRoles in tenants whose rules the roles `berth:viewer` and `berth:editor` get as well. The value is `true`.
/// Set by: platform, team.
pub const AGGREGATE_TO_VIEWER: &str = "berth.dev/aggregate-to-viewer";
/// Label of ClusterRoles of the host whose rules control gets as well, so that it can grant them to syncers: for the kinds that classes
/// list in `sync.kinds`. The value is `true`. Listing a kind in a class grants nothing by itself.
/// Set by: Berth, platform.
pub const AGGREGATE_TO_CONTROL: &str = "berth.dev/aggregate-to-control";
/// Annotation of pods and of pod templates in tenants, and of host pods: the user who created the pod, or who last changed the template
/// that it comes from. The tenant's API server sets it, and nobody in the tenant can change it.
/// Set by: Berth.
pub const CREATED_BY: &str = "berth.dev/created-by";
/// Scheduling gate of host pods of tenants whose Project limits its users. Control takes it off when the user may have the pod.
/// Set by: Berth.
pub const USER_QUOTA_GATE: &str = "berth.dev/user-quota";
/// Selectors of Services on the host: no pod has this label, so that a Service has none: its endpoints change too often, the tenant has not stored it yet, or it has lost its selector.
/// Annotation of Services without a selector on the host: they never had one there.
/// Set by: Berth.
pub const ENDPOINTS: &str = "berth.dev/endpoints";
/// Value of [`ENDPOINTS`] for a while.
pub const ENDPOINTS_NONE: &str = "none";
/// Value of [`ENDPOINTS`] of a Service whose endpoints the tenant makes itself: in a selector, that it may have had another one before.
pub const ENDPOINTS_OWN: &str = "own";
/// Annotation: namespace of the tenant object that a host object stands for.
/// Set by: Berth.
pub const ORIGIN_NAMESPACE: &str = "berth.dev/origin-namespace";
/// Annotation: name of the tenant object that a host object stands for.
/// Set by: Berth.
pub const ORIGIN_NAME: &str = "berth.dev/origin-name";
/// Annotation: UID of the tenant object that a host object stands for. Another UID means it was recreated.
/// Set by: Berth.
pub const ORIGIN_UID: &str = "berth.dev/origin-uid";
/// Annotation on a host object that was made before the tenant's object is stored: when (seconds since the epoch). Such an
/// object has no [`ORIGIN_UID`] yet.
/// Set by: Berth.
pub const RESERVED_AT: &str = "berth.dev/reserved-at";
/// Annotation: hash of what the syncer last applied, so that a restart writes nothing that did not change.
/// Set by: Berth.
pub const APPLIED_HASH: &str = "berth.dev/applied-hash";
/// Annotation on a host pod: the labels and annotations that came from the tenant under their own keys. Only those are ever taken away again; what
/// webhooks of the host have added stays.
/// Set by: Berth.
pub const APPLIED_KEYS: &str = "berth.dev/applied-keys";
/// Annotation on a host pod: hash of the nodes that it may run on, if these are not all of the tenant's.
/// Set by: Berth.
pub const PLACEMENT: &str = "berth.dev/placement";
/// Annotation on a tenant's Node: which of its taints are the host's, as `key:effect`, separated by commas.
/// Set by: Berth.
pub const HOST_TAINTS: &str = "berth.dev/host-taints";
/// Label of the host Secret that carries a pod's tokens; the value is `true`.
/// Set by: Berth.
pub const POD_TOKEN: &str = "berth.dev/pod-token";
/// Annotation on a host Secret that carries a pod's tokens: when the first of them must be renewed (RFC 3339).
/// Set by: Berth.
pub const TOKEN_RENEW_AT: &str = "berth.dev/token-renew-at";
/// Annotation on a host Secret that carries a pod's tokens: the node that the tokens name.
/// Set by: Berth.
pub const TOKEN_NODE: &str = "berth.dev/token-node";
/// Annotation on a host Secret that carries a pod's tokens: hash of the certificates in it, which follow trust bundles of the
/// tenant.
/// Set by: Berth.
pub const TRUST_HASH: &str = "berth.dev/trust-hash";
/// Annotation on a host Secret that carries a pod's tokens: when each of the pod's certificates must be refreshed. A JSON object of
/// RFC 3339 times, by the place of the projection in the pod.
/// Set by: Berth.
pub const CERTIFICATES: &str = "berth.dev/certificates";
/// Annotation on a host Secret that carries a pod's tokens: bytes of each of the pod's certificates there, with its key. A JSON object of numbers, by the
/// place of the projection in the pod.
/// Set by: Berth.
pub const CERTIFICATE_BYTES: &str = "berth.dev/certificate-bytes";
/// Annotation on a host object of which the syncer watches metadata only: bytes of its content when the syncer wrote it, as JSON. Objects that a syncer
/// without this annotation wrote have none until they change.
/// Set by: Berth.
pub const BYTES: &str = "berth.dev/bytes";
/// Label of the tenant namespace that a host object comes from; pod selectors are scoped with it.
/// Set by: Berth.
pub const TENANT_OBJECT_NAMESPACE: &str = "berth.dev/namespace";

/// Labels of host pods: those of the tenant's pod. A slash in the tenant's key is `__`: `app.kubernetes.io/name` becomes
/// `pod.berth.dev/app.kubernetes.io__name`.
/// Set by: Berth.
pub const POD_LABELS: &str = "pod.berth.dev/";
/// Labels of host pods: those of the tenant's pod whose keys are too long for `pod.berth.dev/`, or have two underscores and no domain. The name is a
/// readable part and a hash.
/// Set by: Berth.
pub const HASHED_POD_LABELS: &str = "hash.pod.berth.dev/";
/// Labels of host pods: those of the tenant's namespace, by which selectors of namespaces find them. The name is a readable part of the tenant's key and
/// a hash.
/// Set by: Berth.
pub const NAMESPACE_LABELS: &str = "namespace.berth.dev/";
/// Annotations of host pods: fields of the tenant's pod that the downward API shows in it. The name is a hash of the field.
/// Set by: Berth.
pub const DOWNWARD_FIELDS: &str = "downward.berth.dev/";
/// Annotations of pods in tenants, which their host pods get as well: they drive the simulated kubelets of `berth dev`. Kubelets of real nodes do not
/// know them.
/// Set by: team.
pub const SIMULATION: &str = "simulation.berth.dev/";
/// Labels of host nodes for where they are, for example `topology.berth.dev/rack`. Tenants see those of their nodes.
/// Set by: platform.
pub const TOPOLOGY: &str = "topology.berth.dev/";

/// Label of host pods that no policy of their tenant for ingress selects; the value is [`NETWORK_OPEN`]. The platform's own
/// policies are for such pods only.
/// Set by: Berth.
pub const NETWORK_INGRESS: &str = "net.berth.dev/ingress";
/// Label of host pods that no policy of their tenant for egress selects; the value is [`NETWORK_OPEN`]. The platform's own
/// policies are for such pods only.
/// Set by: Berth.
pub const NETWORK_EGRESS: &str = "net.berth.dev/egress";
/// Label of host pods that a policy of their tenant for egress selects and one of these lets reach the tenant's DNS.
/// Set by: Berth.
pub const NETWORK_DNS: &str = "net.berth.dev/dns";
/// Label of host pods that a policy of their tenant for egress selects and one of these lets reach the tenant's API server.
/// Set by: Berth.
pub const NETWORK_API_SERVER: &str = "net.berth.dev/api-server";
/// Value of [`NETWORK_INGRESS`], [`NETWORK_EGRESS`], [`NETWORK_DNS`] and [`NETWORK_API_SERVER`].
pub const NETWORK_OPEN: &str = "open";
/// Label of host pods that do not carry all labels of the tenant's pod or of its namespace, because there are too many; the value is `true`. Selectors of
/// NetworkPolicies that ask for pods without a label, or without a value of it, do not select such pods.
/// Set by: Berth.
pub const LABELS_LEFT_OUT: &str = "net.berth.dev/labels-left-out";

/// Annotation in a tenant, on pods whose GPUs do nothing and on their owner: the last step, since when, and when the next one is due.
/// JSON. For people and programs; nothing is decided by it.
/// Set by: Berth.
pub const GPUS_IDLE_WARNING: &str = "berth.dev/gpus-idle";
/// Annotation in a tenant, on an owner that Berth stopped because its GPUs did nothing: what it was before. JSON.
/// Set by: Berth.
pub const STOPPED: &str = "berth.dev/stopped";
/// Annotation in a tenant, on an owner with [`STOPPED`]: with the value [`RESTORE_WANTED`], Berth starts it again, once. On a
/// `TenantCluster`: which stopped owners Berth starts again, as `Kind/namespace/name` or `*` for all, separated by commas. Berth removes both.
/// Set by: platform, team.
pub const RESTORE: &str = "berth.dev/restore";
/// Value of [`RESTORE`] in a tenant.
pub const RESTORE_WANTED: &str = "true";

/// Annotation on a `TenantCluster`: when somebody needed the tenant (RFC 3339). If that is not before the time at which it fell asleep, the tenant
/// wakes. It counts as used from that time on.
/// Set by: Berth, platform, team.
pub const WAKE_REQUESTED_AT: &str = "berth.dev/wake-requested-at";
/// Annotation on a `TenantCluster`: when somebody asked it to sleep now (RFC 3339), whatever `spec.sleep.afterIdle` says. Later requests to wake win.
/// Set by: platform, team.
pub const SLEEP_REQUESTED_AT: &str = "berth.dev/sleep-requested-at";
/// Annotation on a `TenantCluster`: when somebody asked for new credentials (RFC 3339). If that is later than the last such request, Berth replaces the
/// authority that signs the tenant's client certificates, and those that were issued before are refused.
/// Set by: platform, team.
pub const CREDENTIALS_ROTATION_REQUESTED_AT: &str = "berth.dev/credentials-rotation-requested-at";
/// Annotation on a `TenantCluster`: when somebody asked for another key of the encryption of what the tenant stores (RFC 3339). If that is later than the last
/// such request, Berth makes a key, rewrites all encrypted objects with it, and deletes the one before.
/// Set by: platform, team.
pub const ENCRYPTION_KEY_ROTATION_REQUESTED_AT: &str = "berth.dev/encryption-key-rotation-requested-at";

/// Annotation on a `TenantCluster`: the name of the `TenantSnapshot` beside it to which the tenant is to be set back. Everything that it stores is replaced.
/// Berth removes the annotation when the restore begins, or is refused. Do not keep it in Git: each time that it is set is another restore.
/// Set by: platform, team.
pub const RESTORE_SNAPSHOT: &str = "berth.dev/restore-snapshot";
/// Annotation on a `TenantCluster`, with [`RESTORE_SNAPSHOT`]: with the value [`RESTORE_WITHOUT_SAVING_WANTED`], Berth takes no snapshot of what the tenant stores
/// before it is replaced. Berth removes it with the other one.
/// Set by: platform, team.
pub const RESTORE_WITHOUT_SAVING: &str = "berth.dev/restore-without-saving";
/// Value of [`RESTORE_WITHOUT_SAVING`].
pub const RESTORE_WITHOUT_SAVING_WANTED: &str = "true";
/// Label of `TenantSnapshot`s that Berth has created: `schedule` for the schedule of the class, `before-restore` for what a tenant stored before a restore.
/// An admission policy refuses changes of it by anybody else.
/// Set by: Berth.
pub const SNAPSHOT_TRIGGER: &str = "berth.dev/snapshot-trigger";
/// Label of `TenantSnapshot`s that Berth has created: the tenant, by the name of its `TenantCluster`.
/// Set by: Berth.
pub const SNAPSHOT_TENANT: &str = "berth.dev/snapshot-tenant";

/// Annotation on a `VolumeSnapshot` on the host: when its claim was created (RFC 3339), and what that used. Usage is counted by it once the claim is gone.
/// Set by: Berth.
pub const SNAPSHOT_SOURCE: &str = "berth.dev/snapshot-source";

/// Label of `UsageRecord`s: the month, in UTC, as `YYYY-MM`.
/// Set by: Berth.
pub const USAGE_MONTH: &str = "berth.dev/usage-month";
/// Label of `UsageRecord`s: the slug of the tenant that used it, or of the pool that had it. Not [`TENANT`]: what has that label is deleted with the tenant.
/// Set by: Berth.
pub const USAGE_TENANT: &str = "berth.dev/usage-tenant";

/// Label that the API server itself puts on every namespace: its name.
/// Set by: Kubernetes.
pub const NAMESPACE_NAME: &str = "kubernetes.io/metadata.name";

/// Finalizer on `TenantCluster`: control removes everything it made before the object may go.
/// Set by: Berth.
pub const FINALIZER: &str = "berth.dev/tenant-cleanup";
/// Finalizer on `Organization`s and `Project`s to which TenantClusters belong: their deletion waits until they have none.
/// Set by: Berth.
pub const QUOTA_FINALIZER: &str = "berth.dev/quota-protection";
/// Finalizer on `TenantSnapshot`s that may have something in the object store: Berth deletes that before the object may go.
/// Set by: Berth.
pub const SNAPSHOT_FINALIZER: &str = "berth.dev/snapshot-cleanup";
/// Annotation on a deleted `Organization` or `Project`: with `true` its deletion does not wait for its TenantClusters.
/// Set by: platform.
pub const FORCE_DELETE: &str = "berth.dev/force-delete";
/// Field manager of control's server-side applies, and of what it writes in statuses.
pub const CONTROL_MANAGER: &str = "berth-control";
/// Field manager of control's server-side applies of a class's manifests in tenants.
pub const PLATFORM_MANAGER: &str = "berth-platform";
/// Field manager of the syncer's server-side applies.
pub const SYNCER_MANAGER: &str = "berth-syncer";

/// Whether a label or annotation key belongs to Berth itself (`berth.dev/…` and every subdomain of it).
pub fn is_reserved(key: &str) -> bool {
    key.split_once('/')
        .is_some_and(|(prefix, _)| prefix == crate::GROUP || prefix.ends_with(".berth.dev"))
}

#[cfg(test)]
mod tests {
    use super::is_reserved;

    #[test]
    fn reserved_keys_are_berths_domain_and_below() {
        assert!(is_reserved("berth.dev/tenant"));
        assert!(is_reserved("simulation.berth.dev/run-for"));
        assert!(!is_reserved("app"));
        assert!(!is_reserved("notberth.dev/tenant"));
        assert!(!is_reserved("example.com/berth.dev"));
    }
}
