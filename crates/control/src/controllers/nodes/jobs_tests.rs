use super::*;
use jiff::Timestamp;

fn assignment() -> Assignment {
    Assignment {
        slug: "vision-abc".into(),
        recycling_id: "aaaaaaaaaaaaa".into(),
        ..Assignment::reserved("", "", "h100", 1, Timestamp::UNIX_EPOCH, "")
    }
}

fn pool(spec: &Value) -> HostNodePoolSpec {
    serde_json::from_value(spec.clone()).unwrap()
}

#[test]
fn jobs_are_as_reviewed() {
    let settings = NodeJobs {
        image: "ghcr.io/berth-dev/berth-scrub:0.1.0".into(),
        pull_policy: Some("Always".into()),
        pull_secrets: vec!["registry".into()],
        placeholder_image: String::new(),
    };
    let pool = pool(&json!({
        "nodeSelector": {"a": "b"}, "gpuResourceName": "nvidia.com/gpu",
        "scrub": {
            "steps": ["Processes", "Claims", "GPUReset", "Images", "Disks"], "disks": ["/mnt/nvme0"],
            "keepImages": ["registry.example.com/base/"],
            "custom": [{"name": "cache", "image": "registry.example.com/wipe:1", "args": ["--all"]}],
            "podAnnotations": {"sidecar.istio.io/inject": "false"},
        },
        "validate": {"custom": [{"name": "burn-in", "image": "registry.example.com/burn:1", "command": ["/burn"]}]},
    }));
    let (platform_pods, assignment) = (["uid-a".to_owned(), "uid-b".to_owned()], assignment());
    let on = OnNode {
        node: "gpu-h100-01",
        assignment: &assignment,
        pool: &pool,
        platform_pods: &platform_pods,
        images: ImageRules::default(),
    };
    insta::assert_yaml_snapshot!("scrub", build(JobKind::Scrub, &settings, &on));
    insta::assert_yaml_snapshot!("validate", build(JobKind::Validate, &settings, &on));
}

#[test]
fn the_default_steps_follow_the_gpus() {
    let names = |spec: &Value| {
        let spec = pool(spec);
        spec.scrub_steps().into_iter().map(ScrubStep::name).collect::<Vec<_>>()
    };
    let base = ["processes", "claims", "ephemeral"];
    assert_eq!(
        names(&json!({"nodeSelector": {}, "gpuResourceName": "amd.com/gpu"})),
        [&base[..], &["images"]].concat()
    );
    let with_nvidia = [&base[..], &["mps", "mig", "gpu-reset", "images"]].concat();
    for pool in [
        json!({"nodeSelector": {}, "gpuResourceName": "nvidia.com/gpu"}),
        json!({"nodeSelector": {}, "gpuResourceName": "amd.com/gpu", "sharing": "DRA"}),
        // Its nodes may have GPUs that it does not count.
        json!({"nodeSelector": {}}),
    ] {
        assert_eq!(names(&pool), with_nvidia, "{pool}");
    }
    assert!(names(&json!({"nodeSelector": {}, "scrub": {"policy": "None"}})).is_empty());
}

#[test]
fn folders_of_nvidia_are_named_to_the_steps_that_need_them() {
    const MPS: &str = "--mps-root=/var/run/mps";
    const DRIVER: &str = "--driver-root=/opt/nvidia";
    let arguments = |nvidia: &Value, kind: JobKind, step: &str| {
        let pool = pool(&json!({"nodeSelector": {}, "gpuResourceName": "nvidia.com/gpu", "nvidia": nvidia}));
        let assignment = assignment();
        let on = OnNode {
            node: "gpu-h100-01",
            assignment: &assignment,
            pool: &pool,
            platform_pods: &[],
            images: ImageRules::default(),
        };
        let pod = build(kind, &NodeJobs::default(), &on)
            .spec
            .unwrap()
            .template
            .spec
            .unwrap();
        let containers = pod.init_containers.unwrap().into_iter();
        let args = containers
            .filter(|container| container.name == step)
            .find_map(|container| container.args);
        args.unwrap().split_off(1)
    };
    for (kind, step, expected) in [
        (JobKind::Scrub, "mps", &[MPS][..]),
        (JobKind::Scrub, "mig", &[DRIVER]),
        (JobKind::Scrub, "gpu-reset", &[DRIVER]),
        (JobKind::Validate, "check", &[MPS, DRIVER]),
    ] {
        let named = json!({"mpsRoot": "/var/run/mps", "driverRoot": "/opt/nvidia"});
        assert_eq!(arguments(&named, kind, step), expected);
        assert!(arguments(&json!({}), kind, step).is_empty(), "{step}");
    }
}

#[test]
fn images_of_programs_that_are_away_for_the_scrub_are_named_to_the_step_that_removes_images() {
    let pool = pool(&json!({"nodeSelector": {}, "scrub": {"steps": ["Images"], "keepImages": ["q.example/base/"]}}));
    let assignment = Assignment {
        paused_images: ["q.example/plugin:1".to_owned()].into(),
        ..assignment()
    };
    let on = OnNode {
        node: "gpu-h100-01",
        assignment: &assignment,
        pool: &pool,
        platform_pods: &[],
        images: ImageRules::default(),
    };
    assert_eq!(
        arguments(ScrubStep::Images, &on),
        ["images", "--keep=q.example/base/", "--keep-image=q.example/plugin:1"]
    );
}

#[test]
fn the_check_knows_which_risks_matter() {
    let arguments = |validate: &Value, images: ImageRules| {
        let pool = pool(&json!({"nodeSelector": {}, "validate": validate}));
        risk_arguments(&pool, images)
    };
    let (listed, all) = (
        ImageRules::of([Some(&["docker.io/*".to_owned()][..])]),
        ImageRules::of([None]),
    );
    assert!(arguments(&json!({}), ImageRules::default()).is_empty());
    assert_eq!(arguments(&json!({}), listed), ["--images-are-listed"]);
    assert_eq!(arguments(&json!({}), all), ["--all-images-are-allowed"]);
    let strict = json!({"riskPolicy": "Quarantine", "acceptedRisks": ["BootstrapCredentials", "ShortNames"]});
    assert_eq!(
        arguments(&strict, ImageRules::default()),
        [
            "--refuse-risks",
            "--accept-risk=BootstrapCredentials",
            "--accept-risk=ShortNames"
        ]
    );
}

#[test]
fn a_list_with_a_star_alone_is_every_image() {
    let (some, star) = (["q.example/*".to_owned()], ["*".to_owned()]);
    let both = ImageRules::of([Some(&some[..]), Some(&star[..])]);
    assert!(both.some_are_listed && both.all_are_allowed);
    assert_eq!(ImageRules::of([Some(&star[..])]), ImageRules::of([None]));
    assert_eq!(ImageRules::of([]), ImageRules::default());
}

#[test]
fn names_are_unique_and_fit() {
    let first = name(JobKind::Scrub, "gpu-h100-01", &assignment());
    assert!(first.starts_with("scrub-gpu-h100-01-") && first.len() <= 63, "{first}");
    assert_ne!(first, name(JobKind::Validate, "gpu-h100-01", &assignment()));
    let again = Assignment {
        recycling_id: "bbbbbbbbbbbbb".into(),
        ..assignment()
    };
    assert_ne!(first, name(JobKind::Scrub, "gpu-h100-01", &again));
    assert!(name(JobKind::Scrub, &"n".repeat(250), &assignment()).len() <= 63);
}

#[test]
fn the_state_of_a_job_follows_its_conditions() {
    let job = |conditions: Value| -> Job {
        serde_json::from_value(json!({"metadata": {"name": "j"}, "status": {"conditions": conditions}})).unwrap()
    };
    assert_eq!(state(None), JobState::Missing);
    assert_eq!(state(Some(&job(json!([])))), JobState::Running);
    let criteria = json!([{"type": "SuccessCriteriaMet", "status": "True"}]);
    assert_eq!(
        state(Some(&job(criteria))),
        JobState::Running,
        "its pods have not ended"
    );
    let complete = job(json!([{"type": "Complete", "status": "True"}]));
    assert_eq!(state(Some(&complete)), JobState::Succeeded);
    let failed =
        job(json!([{"type": "Failed", "status": "True", "reason": "DeadlineExceeded", "message": "too long"}]));
    let why = "DeadlineExceeded: too long (Job j)".to_owned();
    assert_eq!(state(Some(&failed)), JobState::Failed(why));
    let mut going = complete;
    going.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(
        Timestamp::UNIX_EPOCH,
    ));
    assert_eq!(
        state(Some(&going)),
        JobState::Running,
        "one that is being deleted proves nothing"
    );
}
