//! How containers end, and what is said of it.

use crate::support::engine::on_engine;

#[tokio::test]
async fn a_container_runs_to_its_end_and_both_streams_are_kept_apart() {
    on_engine(1, async |engine| {
        let ran = engine.run(&engine.script("echo out; echo err >&2; exit 3")).await;
        assert_eq!(ran.code(), 3);
        assert_eq!(ran.stdout, b"out\n");
        assert_eq!(ran.stderr, b"err\n");
    })
    .await;
}
