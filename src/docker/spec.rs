//! From a [`ContainerPlan`] to the body of Docker's create call. Pure, so that a table can show what a job
//! definition can and cannot bring about.

use std::collections::HashMap;

use bollard::models::{
    ContainerCreateBody, HostConfig, HostConfigLogConfig, RestartPolicy, RestartPolicyNameEnum,
};
use leasehold_actors::{domain::ContainerSpec, ports::ContainerPlan};

/// The engine's own record of the output, read only when the live stream broke or another worker took over.
///
/// Whatever the daemon's default is, this one can be read back, and keeps every newline: `local` loses the one
/// behind a line of more than 16 KiB (seen with Docker 20.10).
const LOG_DRIVER: &str = "json-file";

/// The create call for a plan.
pub(super) fn create_body(plan: &ContainerPlan) -> ContainerCreateBody {
    let spec = &plan.spec;
    ContainerCreateBody {
        image: Some(spec.image.clone()),
        cmd: if spec.command.is_empty() { None } else { Some(spec.command.clone()) },
        entrypoint: spec.entrypoint.clone(),
        env: Some(environment(plan)),
        working_dir: spec.workdir.clone(),
        user: spec.user.clone(),
        labels: Some(plan.labels.iter().cloned().collect::<HashMap<_, _>>()),
        // For those who stop it by hand; we send the signals ourselves. The signal stays the image's own.
        stop_timeout: Some(stop_grace_ms(spec).div_euclid(1000).max(1)),
        // Streams stay apart and raw only without a terminal.
        tty: Some(false),
        open_stdin: Some(false),
        attach_stdout: Some(true),
        attach_stderr: Some(true),
        host_config: Some(host_config(spec)),
        ..ContainerCreateBody::default()
    }
}

fn host_config(spec: &ContainerSpec) -> HostConfig {
    HostConfig {
        memory: spec.memory_bytes,
        // Equal to `memory`: no swap on top, or the limit would be twice what was asked.
        memory_swap: spec.memory_bytes,
        nano_cpus: spec.cpu_millis.map(|millis| millis.saturating_mul(1_000_000)),
        pids_limit: spec.pids_limit,
        network_mode: spec.network.clone(),
        // Whose exit is it? Never that of a later run.
        restart_policy: Some(RestartPolicy {
            name: Some(RestartPolicyNameEnum::NO),
            maximum_retry_count: None,
        }),
        // The exit code must still be there when somebody asks for it.
        auto_remove: Some(false),
        log_config: Some(HostConfigLogConfig {
            typ: Some(LOG_DRIVER.to_owned()),
            config: Some(HashMap::from([
                ("max-size".to_owned(), log_file_size(spec)),
                ("max-file".to_owned(), "5".to_owned()),
            ])),
        }),
        ..HostConfig::default()
    }
}

/// Output beyond the quota is thrown away anyway; the engine's disk is protected by the same number.
fn log_file_size(spec: &ContainerSpec) -> String {
    let quota = spec.log_quota_bytes.unwrap_or(ContainerSpec::DEFAULT_LOG_QUOTA_BYTES);
    quota.max(10 * 1024 * 1024).to_string()
}

/// The grace between asking and killing, in milliseconds.
fn stop_grace_ms(spec: &ContainerSpec) -> i64 {
    spec.stop_grace_ms.unwrap_or(ContainerSpec::DEFAULT_STOP_GRACE_MS)
}

/// Leasehold's own variables win: a job cannot pretend to another epoch.
fn environment(plan: &ContainerPlan) -> Vec<String> {
    let ours = |name: &str| plan.env.iter().any(|(key, _)| key == name);
    plan.spec
        .env
        .iter()
        .filter(|(name, _)| !ours(name))
        .map(|(name, value)| format!("{name}={value}"))
        .chain(plan.env.iter().map(|(name, value)| format!("{name}={value}")))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn plan(spec: ContainerSpec) -> ContainerPlan {
        ContainerPlan {
            name: "leasehold-0123abcd-7-1".to_owned(),
            labels: vec![("leasehold.job".to_owned(), "7".to_owned())],
            spec,
            env: vec![("LEASEHOLD_FENCING_EPOCH".to_owned(), "1".to_owned())],
        }
    }

    /// The JSON that goes over the wire, which is what Docker sees.
    fn wire(spec: ContainerSpec) -> serde_json::Value {
        serde_json::to_value(create_body(&plan(spec))).expect("a create body is plain data")
    }

    #[test]
    fn an_empty_definition_keeps_what_the_image_says() {
        let body = wire(ContainerSpec { image: "a:1".to_owned(), ..ContainerSpec::default() });
        for field in ["Cmd", "Entrypoint", "WorkingDir", "User", "StopSignal", "NetworkDisabled"] {
            assert!(body.get(field).is_none(), "{field} = {}", body[field]);
        }
        for field in ["Memory", "MemorySwap", "NanoCpus", "PidsLimit", "NetworkMode"] {
            assert!(body["HostConfig"].get(field).is_none(), "{field}");
        }
        assert_eq!(body["StopTimeout"], 10);
        assert_eq!(body["Tty"], false);
    }

    #[test]
    fn every_part_of_a_definition_arrives() {
        let body = wire(ContainerSpec {
            image: "a:1".to_owned(),
            command: vec!["-c".to_owned(), "exit 3".to_owned()],
            entrypoint: Some(vec!["sh".to_owned()]),
            workdir: Some("/tmp".to_owned()),
            user: Some("1:2".to_owned()),
            memory_bytes: Some(64 << 20),
            cpu_millis: Some(250),
            pids_limit: Some(32),
            network: Some("none".to_owned()),
            stop_grace_ms: Some(2500),
            log_quota_bytes: Some(32 << 20),
            ..ContainerSpec::default()
        });
        assert_eq!(body["Image"], "a:1");
        assert_eq!(body["Cmd"], serde_json::json!(["-c", "exit 3"]));
        assert_eq!(body["Entrypoint"], serde_json::json!(["sh"]));
        assert_eq!(body["WorkingDir"], "/tmp");
        assert_eq!(body["User"], "1:2");
        assert_eq!(body["Labels"]["leasehold.job"], "7");
        assert_eq!(body["StopTimeout"], 2);
        let host = &body["HostConfig"];
        assert_eq!(host["Memory"], 64 << 20);
        assert_eq!(host["MemorySwap"], 64 << 20);
        assert_eq!(host["NanoCpus"], 250_000_000);
        assert_eq!(host["PidsLimit"], 32);
        assert_eq!(host["NetworkMode"], "none");
        assert_eq!(host["LogConfig"]["Config"]["max-size"], (32 << 20).to_string());
    }

    /// DK-03, DK-35
    #[test]
    fn restart_policy_removal_and_log_driver_are_never_left_to_the_engines_defaults() {
        let body = wire(ContainerSpec::default());
        let host = &body["HostConfig"];
        assert_eq!(host["RestartPolicy"]["Name"], "no");
        assert_eq!(host["AutoRemove"], false);
        assert_eq!(host["LogConfig"]["Type"], "json-file");
    }

    /// DK-33
    #[test]
    fn environment_values_are_copied_byte_for_byte_and_ours_win() {
        let odd = "a\nb\r\n\t= \"q\" $HOME \\n  ";
        let env = BTreeMap::from([
            ("EMPTY".to_owned(), String::new()),
            ("LEASEHOLD_FENCING_EPOCH".to_owned(), "99".to_owned()),
            ("ODD".to_owned(), odd.to_owned()),
        ]);
        let body = wire(ContainerSpec { env, ..ContainerSpec::default() });
        let expected = serde_json::json!(["EMPTY=", format!("ODD={odd}"), "LEASEHOLD_FENCING_EPOCH=1"]);
        assert_eq!(body["Env"], expected);
    }
}
