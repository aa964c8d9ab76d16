use super::*;

const READING: Reading = Reading {
    jobs: None,
    tenants: 4,
    seed: 0,
};

fn read(text: &str) -> Result<Trace, TraceError> {
    Trace::read(text.as_bytes(), READING)
}

fn refused(text: &str) -> String {
    read(text).unwrap_err().to_string()
}

#[test]
fn jobs_come_in_order_of_arrival_with_their_tenants() {
    let trace = read(
        "timestamp,duration,num_gpus,tenant\n2017-10-09 07:01:55,66.2,1,b\n2017-10-09 06:00:00,10,16,a\n2017-10-09 06:00:00,1,0,c\n",
    )
    .unwrap();
    assert_eq!(trace.tenants, ["a", "b"]);
    let job = |tenant, arrival, duration, gpus| Job {
        tenant,
        arrival,
        duration,
        gpus,
    };
    assert_eq!(
        trace.jobs,
        [job(0, 1_507_528_800, 10, 16), job(1, 1_507_532_515, 67, 1)]
    );
    assert_eq!(trace.left_out.without_gpus, 1);
}

#[test]
fn the_philly_form_and_every_form_of_time_are_accepted() {
    let trace = read(
        "timestamp,duration,num_gpus,gpu_time,cluster\n2017-10-09T07:01:55Z,66.0,1,66.0,11cb48\n5,1.0,2,2.0,6214e9\n\n",
    )
    .unwrap();
    assert_eq!(trace.tenants, ["11cb48", "6214e9"]);
    assert_eq!(trace.jobs[0].arrival, 5);
    assert_eq!(trace.jobs[1].arrival, 1_507_532_515);
}

const PODS: &str =
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n";

#[test]
fn pods_of_one_shape_belong_to_one_tenant() {
    let trace = read(&format!(
        "{PODS}p0,12000,16384,1,460,,LS,Running,10,120,20\n\
         p1,12000,16384,1,460,,LS,Failed,0,50,0\n\
         p2,3152,5600,8,1000,V100,BE,Running,30,130,30\n\
         p3,12000,16384,1,460,,LS,Pending,10,120,\n\
         p4,12000,16384,0,0,,LS,Running,10,120,20\n"
    ))
    .unwrap();
    assert_eq!(trace.jobs.len(), 3);
    assert_eq!(trace.jobs[0].tenant, trace.jobs[1].tenant);
    // The job arrives when its pod was created, and runs as long as the pod ran.
    assert_eq!(
        (trace.jobs[1].arrival, trace.jobs[1].duration, trace.jobs[1].gpus),
        (10, 100, 1)
    );
    assert_eq!(
        trace.left_out,
        LeftOut {
            without_gpus: 1,
            never_ran: 1
        }
    );
}

#[test]
fn a_limit_takes_the_first_to_arrive() {
    let text = "timestamp,duration,num_gpus,tenant\n9,1,1,late\n1,1,1,early\n";
    let reading = Reading {
        jobs: Some(1),
        ..READING
    };
    assert_eq!(Trace::read(text.as_bytes(), reading).unwrap().tenants, ["early"]);
}

#[test]
fn errors_name_their_line() {
    let heading = "timestamp,duration,num_gpus,tenant\n1,1,1,a\n";
    for (row, expected) in [
        (
            "yesterday,1,1,a",
            "line 3: timestamp \"yesterday\" is neither a date and time nor a number of seconds",
        ),
        ("1,long,1,a", "line 3: duration \"long\" is not a valid number"),
        ("1,-4,1,a", "line 3: duration -4 is out of range"),
        ("1,NaN,1,a", "line 3: duration NaN is out of range"),
        ("1,1,1.5,a", "line 3: num_gpus \"1.5\" is not a valid number"),
        ("1,1,-1,a", "line 3: num_gpus \"-1\" is not a valid number"),
        ("1,1,1,", "line 3: tenant is empty"),
        ("1,1,1", "line 3: 3 columns, but the header has 4"),
    ] {
        assert_eq!(refused(&format!("{heading}{row}\n")), expected);
    }
    assert_eq!(
        refused(&format!("{PODS}p0,1,1,1,1000,,LS,Running,10,12,20\n")),
        "line 2: deleted at 12, before it was scheduled at 20"
    );
    assert!(refused("a,b\n1,2\n").starts_with("line 1: the columns are \"a,b\"; expected timestamp,"));
    assert!(refused("").starts_with("line 1: "));
    assert_eq!(
        refused("timestamp,duration,num_gpus,tenant\n"),
        "the trace has no job that requests GPUs"
    );
}

#[test]
fn compressed_files_are_read() {
    use std::io::Write as _;
    let mut compressed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    compressed
        .write_all(b"timestamp,duration,num_gpus,tenant\n1,1,1,a\n")
        .unwrap();
    let path = std::env::temp_dir().join(format!("berth-trace-{}.csv", std::process::id()));
    std::fs::write(&path, compressed.finish().unwrap()).unwrap();
    let trace = Trace::open(&path, READING).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert_eq!(trace.jobs.len(), 1);
    let missing = Trace::open(Path::new("/nowhere.csv"), READING).unwrap_err();
    assert!(missing.to_string().starts_with("cannot read it: "), "{missing}");
}
