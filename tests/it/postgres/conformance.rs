//! The conformance suite on PostgreSQL: every case in a database of its own.

use leasehold_actors::conformance_cases;

use super::harness::PgHarness;

macro_rules! on_postgres {
    ($($module:ident: [$($case:ident),* $(,)?];)*) => {
        $(mod $module {
            use super::PgHarness;
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                let harness = PgHarness::create().await;
                leasehold_actors::testing::conformance::$module::$case(&harness).await;
            })*
        })*
    };
}

conformance_cases!(on_postgres);
