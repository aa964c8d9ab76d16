//! Services whose creation fails on one side, and a webhook that is gone.

use super::*;

pub async fn reservations_of_rejected_services_are_deleted(clusters: &Clusters) {
    let namespaces: Api<Namespace> = Api::all(clusters.tenant_admin.clone());
    create(&namespaces, json!({"metadata": {"name": "full"}})).await;
    let quotas: Api<ResourceQuota> = Api::namespaced(clusters.tenant_admin.clone(), "full");
    create(
        &quotas,
        json!({"metadata": {"name": "none"}, "spec": {"hard": {"services": "0"}}}),
    )
    .await;
    eventually("the quota counts", async || {
        quotas
            .get("none")
            .await
            .unwrap()
            .status
            .is_some_and(|status| status.hard.is_some())
    })
    .await;
    let services: Api<Service> = Api::namespaced(clusters.tenant_admin.clone(), "full");
    let service: Service = serde_json::from_value(plain("late")).unwrap();
    // The API server's own cache of quotas may be a moment old.
    let dry_run = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    eventually(
        "the quota is enforced",
        async || matches!(services.create(&dry_run, &service).await, Err(Error::Api(status)) if status.code == 403),
    )
    .await;
    let (code, message) = denial(services.create(&PostParams::default(), &service).await);
    assert!(code == 403 && message.contains("exceeded quota"), "{message}");
    let host_services = clusters.host_api::<Service>();
    let name = berth_api::names::host_name("Service", "full", "late");
    let reserved = host_services.get(&name).await.expect("the reservation is there");
    assert!(reserved.annotations().contains_key(RESERVED_AT) && !reserved.annotations().contains_key(ORIGIN_UID));
    assert_eq!(
        spec(&reserved)["selector"][ENDPOINTS],
        ENDPOINTS_NONE,
        "it leads to no pods"
    );

    // Once the quota allows the Service, it gets the reservation.
    let larger = Patch::Merge(json!({"spec": {"hard": {"services": "1"}}}));
    quotas.patch("none", &PatchParams::default(), &larger).await.unwrap();
    eventually("the quota allows the Service", async || {
        services.create(&PostParams::default(), &service).await.is_ok()
    })
    .await;
    let created = services.get("late").await.unwrap();
    assert_eq!(spec(&created)["clusterIP"], spec(&reserved)["clusterIP"]);
    eventually("it leads to its pods", async || {
        let host = host_services.get(&name).await.unwrap();
        spec(&host)["selector"].get(ENDPOINTS).is_none()
    })
    .await;

    // A reservation without a Service is deleted as soon as it is old enough.
    let (code, _) = denial(
        services
            .create(&PostParams::default(), &serde_json::from_value(plain("never")).unwrap())
            .await,
    );
    assert_eq!(code, 403);
    let name = berth_api::names::host_name("Service", "full", "never");
    assert!(host_services.get_opt(&name).await.unwrap().is_some());
    let older = Patch::Merge(json!({"metadata": {"annotations": {RESERVED_AT: "1000000"}}}));
    host_services
        .patch(&name, &PatchParams::default(), &older)
        .await
        .unwrap();
    eventually("it is swept", async || {
        host_services.get_opt(&name).await.unwrap().is_none()
    })
    .await;
}

/// A plug-in of the tenant rejects what the host has opened already.
pub async fn an_update_that_the_tenant_rejects_is_undone_soon(clusters: &Clusters) {
    let namespaces: Api<Namespace> = Api::all(clusters.tenant_admin.clone());
    create(&namespaces, json!({"metadata": {"name": "shut"}})).await;
    let services: Api<Service> = Api::namespaced(clusters.tenant_admin.clone(), "shut");
    create(&services, plain("web")).await;
    let quotas: Api<ResourceQuota> = Api::namespaced(clusters.tenant_admin.clone(), "shut");
    let none = json!({"metadata": {"name": "none"}, "spec": {"hard": {"services.nodeports": "0"}}});
    create(&quotas, none).await;
    let open = Patch::Merge(json!({"spec": {"type": "NodePort"}}));
    let dry_run = PatchParams::default().dry_run();
    eventually(
        "the quota is enforced",
        async || matches!(services.patch("web", &dry_run, &open).await, Err(Error::Api(status)) if status.code == 403),
    )
    .await;
    let host_services = clusters.host_api::<Service>();
    let name = berth_api::names::host_name("Service", "shut", "web");
    let kind = async || spec(&host_services.get(&name).await.unwrap())["type"].clone();
    assert_eq!(kind().await, "ClusterIP");
    let begun = std::time::Instant::now();
    let (code, message) = denial(services.patch("web", &PatchParams::default(), &open).await);
    assert!(code == 403 && message.contains("exceeded quota"), "{message}");
    assert_eq!(kind().await, "NodePort", "the host was first");
    eventually("the port is closed", async || kind().await == "ClusterIP").await;
    let taken = begun.elapsed();
    assert!(taken < std::time::Duration::from_secs(15), "{taken:?}");
    quotas.delete("none", &DeleteParams::default()).await.unwrap();
    eventually("it can be opened", async || {
        services.patch("web", &PatchParams::default(), &open).await.is_ok()
    })
    .await;
    let port = |service: &Service| spec(service)["ports"][0]["nodePort"].clone();
    let host = host_services.get(&name).await.unwrap();
    assert_eq!(port(&services.get("web").await.unwrap()), port(&host));
    assert!(port(&host).is_u64());
}

pub async fn the_configuration_comes_back(clusters: &Clusters) {
    let configurations: Api<MutatingWebhookConfiguration> = Api::all(clusters.tenant_admin.clone());
    let name = configuration::NAME;
    let wanted = configurations.get(name).await.unwrap();
    let never = json!({"name": "never", "expression": "false"});
    let mut webhook = serde_json::to_value(&wanted.webhooks.as_ref().unwrap()[0]).unwrap();
    webhook["matchConditions"].as_array_mut().unwrap().push(never);
    let edit = Patch::Merge(json!({"webhooks": [webhook]}));
    configurations
        .patch(name, &PatchParams::default(), &edit)
        .await
        .unwrap();
    let is_as_wanted = async || {
        let live = configurations.get_opt(name).await.unwrap();
        live.is_some_and(|live| live.webhooks == wanted.webhooks)
    };
    eventually("an edit is undone", is_as_wanted).await;
    configurations.delete(name, &DeleteParams::default()).await.unwrap();
    eventually("it is made again", is_as_wanted).await;
}

pub async fn without_a_syncer(clusters: &Clusters) {
    let services = clusters.tenant_api::<Service>();
    let service: Service = serde_json::from_value(plain("unserved")).unwrap();
    let (code, message) = denial(services.create(&PostParams::default(), &service).await);
    assert!(
        code == 500 && message.contains("services.berth.dev"),
        "{code} {message}"
    );
    assert!(!message.contains(WORKLOADS), "{message}");
    // Requests that need nothing of the host still succeed.
    let mut headless = plain("headless-alone");
    headless["spec"]["clusterIP"] = "None".into();
    create(&services, headless).await;
    patch(clusters, "created", json!({"metadata": {"labels": {"a": "b"}}}))
        .await
        .unwrap();
    services.delete("created", &DeleteParams::default()).await.unwrap();
    let syncer = clusters.syncer().await;
    eventually("Services can be made again", async || {
        services.create(&PostParams::default(), &service).await.is_ok()
    })
    .await;
    assert_same(clusters, &services.get("unserved").await.unwrap()).await;
    syncer.stop().await;
}
