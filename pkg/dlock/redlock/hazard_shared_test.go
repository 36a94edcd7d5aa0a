package redlock_test

import (
	"testing"

	"github.com/ceyewan/genesis/internal/hazardtest"
)

// The scenarios that all backends share. Scenarios that only several nodes can meet are in the
// other files hazard_*_test.go.

func TestLostAcquireReplyGrantsOnce(t *testing.T) { hazardtest.LostAcquireReplyGrantsOnce(t, openEnv) }
func TestLostReplyLeavesNoGhost(t *testing.T)     { hazardtest.LostReplyLeavesNoGhost(t, openEnv) }
func TestCleanupOvertakesAcquire(t *testing.T)    { hazardtest.CleanupOvertakesAcquire(t, openEnv) }
func TestLostUnlockReplyUnlocks(t *testing.T)     { hazardtest.LostUnlockReplyUnlocks(t, openEnv) }

func TestRepeatedUnlockSparesTheNextHold(t *testing.T) {
	hazardtest.RepeatedUnlockSparesTheNextHold(t, openEnv)
}

func TestLateUnlockSparesTheNextHold(t *testing.T) {
	hazardtest.LateUnlockSparesTheNextHold(t, openEnv)
}

func TestUnlockAfterExpirySparesTheNextHolder(t *testing.T) {
	hazardtest.UnlockAfterExpirySparesTheNextHolder(t, openEnv)
}

func TestCancelledCallsLeaveNothing(t *testing.T) { hazardtest.CancelledCallsLeaveNothing(t, openEnv) }

func TestCallsReturnWithTheirContext(t *testing.T) {
	hazardtest.CallsReturnWithTheirContext(t, openEnv)
}

func TestWaitersSurviveLostPushes(t *testing.T) { hazardtest.WaitersSurviveLostPushes(t, openEnv) }
func TestPushedHandOversAreQuick(t *testing.T)  { hazardtest.PushedHandOversAreQuick(t, openEnv) }
func TestDeadWaitersAreSkipped(t *testing.T)    { hazardtest.DeadWaitersAreSkipped(t, openEnv) }
func TestNoThunderingHerd(t *testing.T)         { hazardtest.NoThunderingHerd(t, openEnv) }

func TestCancelledWaitersLeaveTheQueue(t *testing.T) {
	hazardtest.CancelledWaitersLeaveTheQueue(t, openEnv)
}

func TestCloseReleasesEverything(t *testing.T) { hazardtest.CloseReleasesEverything(t, openEnv) }
func TestCloseOnADeadLink(t *testing.T)        { hazardtest.CloseOnADeadLink(t, openEnv) }

func TestServerPauseIsNoLoss(t *testing.T)     { hazardtest.ServerPauseIsNoLoss(t, openEnv) }
func TestDeadLinkIsLostInTime(t *testing.T)    { hazardtest.DeadLinkIsLostInTime(t, openEnv) }
func TestPausedHolderIsFenced(t *testing.T)    { hazardtest.PausedHolderIsFenced(t, openEnv) }
func TestDeadOwnerFreesTheLock(t *testing.T)   { hazardtest.DeadOwnerFreesTheLock(t, openEnv) }
func TestForgottenLockIsFreed(t *testing.T)    { hazardtest.ForgottenLockIsFreed(t, openEnv) }
func TestRenewalDoesNotResurrect(t *testing.T) { hazardtest.RenewalDoesNotResurrect(t, openEnv) }
