package cli

import (
	"os"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/windows"
)

// A child is the command and everything that it starts: a job object, which ends with us.
type child struct {
	pid     int
	job     windows.Handle
	ended   chan int            // its exit code
	stopped chan syscall.Signal // never: a console stops no process
}

// startChild starts the command in a job object. Windows does not let it inherit the lock of a file,
// so whatever the backend is, the command is killed when we die.
func startChild(r *run, _ []*os.File, _ bool) (*child, error) {
	job, err := newJob()
	if err != nil {
		return nil, err
	}
	// It is suspended until it is in the job, so that everything that it starts is in the job as well.
	// It is a group of its own, which can be sent Ctrl-Break.
	attr := &syscall.SysProcAttr{CreationFlags: windows.CREATE_SUSPENDED | windows.CREATE_NEW_PROCESS_GROUP}
	if r.shell != "" { // cmd does not read its arguments as other programs do
		attr.CmdLine = strings.Join(shell, " ") + ` "` + r.shell + `"`
	}
	p, err := os.StartProcess(r.path, r.args, &os.ProcAttr{
		Env: r.environment(), Files: []*os.File{r.stdin, r.stdout, r.stderr}, Sys: attr,
	})
	if err != nil {
		_ = windows.CloseHandle(job)
		return nil, err
	}
	c := &child{pid: p.Pid, job: job, ended: make(chan int, 1)}
	if err := c.resume(); err != nil {
		_ = p.Kill()
		_, _ = p.Wait()
		_ = windows.CloseHandle(job)
		return nil, err
	}
	go c.await(p)
	return c, nil
}

// newJob makes a job object that kills its processes when its last handle is closed, which is ours.
func newJob() (windows.Handle, error) {
	job, err := windows.CreateJobObject(nil, nil)
	if err != nil {
		return 0, os.NewSyscallError("CreateJobObject", err)
	}
	if err := limitJob(job, windows.JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE); err != nil {
		_ = windows.CloseHandle(job)
		return 0, err
	}
	return job, nil
}

func limitJob(job windows.Handle, flags uint32) error {
	limits := windows.JOBOBJECT_EXTENDED_LIMIT_INFORMATION{}
	limits.BasicLimitInformation.LimitFlags = flags
	_, err := windows.SetInformationJobObject(job, windows.JobObjectExtendedLimitInformation,
		uintptr(unsafe.Pointer(&limits)), uint32(unsafe.Sizeof(limits)))
	return os.NewSyscallError("SetInformationJobObject", err)
}

// resume puts the command into its job, and lets it run.
func (c *child) resume() error {
	process, err := windows.OpenProcess(windows.PROCESS_SET_QUOTA|windows.PROCESS_TERMINATE, false, uint32(c.pid))
	if err != nil {
		return os.NewSyscallError("OpenProcess", err)
	}
	defer func() { _ = windows.CloseHandle(process) }()
	if err := windows.AssignProcessToJobObject(c.job, process); err != nil {
		return os.NewSyscallError("AssignProcessToJobObject", err)
	}
	thread, err := threadOf(uint32(c.pid))
	if err != nil {
		return err
	}
	defer func() { _ = windows.CloseHandle(thread) }()
	_, err = windows.ResumeThread(thread)
	return os.NewSyscallError("ResumeThread", err)
}

// threadOf is the only thread of a process that has not run yet. os.StartProcess does not tell it.
func threadOf(pid uint32) (windows.Handle, error) {
	all, err := windows.CreateToolhelp32Snapshot(windows.TH32CS_SNAPTHREAD, 0)
	if err != nil {
		return 0, os.NewSyscallError("CreateToolhelp32Snapshot", err)
	}
	defer func() { _ = windows.CloseHandle(all) }()
	entry := windows.ThreadEntry32{}
	entry.Size = uint32(unsafe.Sizeof(entry))
	for err = windows.Thread32First(all, &entry); err == nil; err = windows.Thread32Next(all, &entry) {
		if entry.OwnerProcessID == pid {
			thread, err := windows.OpenThread(windows.THREAD_SUSPEND_RESUME, false, entry.ThreadID)
			return thread, os.NewSyscallError("OpenThread", err)
		}
	}
	return 0, os.NewSyscallError("Thread32Next", err)
}

// await waits for the command's end.
func (c *child) await(p *os.Process) {
	state, err := p.Wait()
	if err != nil {
		c.ended <- ExitCannotRun
		return
	}
	c.ended <- state.ExitCode()
}

// signal sends Ctrl-Break to the command and all its children: no other event can be sent to a group.
func (c *child) signal(s os.Signal) {
	if ends(s) {
		c.askToEnd()
	}
}

// askToEnd sends Ctrl-Break, which Go programs receive as os.Interrupt. Without a console it does
// nothing.
func (c *child) askToEnd() {
	_ = windows.GenerateConsoleCtrlEvent(windows.CTRL_BREAK_EVENT, uint32(c.pid))
}

// kill ends all processes of the job.
func (c *child) kill() error {
	return os.NewSyscallError("TerminateJobObject", windows.TerminateJobObject(c.job, exitKilled))
}

// exitKilled is what a shell on Unix says of a killed command.
const exitKilled = exitSignal + uint32(syscall.SIGKILL)

// awaitOthers waits until all processes of the job have ended, and reports whether they have.
func (c *child) awaitOthers(until time.Time) bool {
	for c.running() > 0 {
		if !time.Now().Before(until) {
			return false
		}
		time.Sleep(time.Millisecond)
	}
	return true
}

// leaveOthers lets what the command has left running in the background go on when we end. Until then, it ends with us.
func (c *child) leaveOthers() { _ = limitJob(c.job, 0) }

// running is how many processes of the job have not ended.
func (c *child) running() uint32 {
	var info struct { // JOBOBJECT_BASIC_ACCOUNTING_INFORMATION
		_         [4]int64
		_         [2]uint32
		active, _ uint32
	}
	err := windows.QueryInformationJobObject(c.job, windows.JobObjectBasicAccountingInformation,
		uintptr(unsafe.Pointer(&info)), uint32(unsafe.Sizeof(info)), nil)
	if err != nil {
		return 0
	}
	return info.active
}

// A console has no foreground group, and does not suspend.
func (*child) suspend(syscall.Signal) {}
func (*child) takeTerminal()          {}
func heedStops(chan<- os.Signal)      {}
func stopFor(os.Signal)               {}
