package framework

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// clockStub takes the place of the vDSO's clock_gettime: it asks the kernel, and adds seconds to what that says of CLOCK_REALTIME, and of no
// other clock. The seconds follow it.
var clockStub = []byte{
	0xb8, 228, 0, 0, 0, // mov $228, %eax (clock_gettime)
	0x0f, 0x05, // syscall
	0x85, 0xc0, // test %eax, %eax
	0x75, 14, // jnz to the end: an error
	0x85, 0xff, // test %edi, %edi
	0x75, 10, // jnz to the end: not CLOCK_REALTIME
	0x48, 0x8b, 0x0d, 10, 0, 0, 0, // mov 10(%rip), %rcx
	0x48, 0x01, 0x0e, // add %rcx, (%rsi)
	0xc3,             // ret
	0, 0, 0, 0, 0, 0, // the seconds are at an address that is written at once
}

// SetClock sets the wall clock that the running process sees, and whatever it is made of, ahead of the machine's, or behind, until it ends.
// Its steady clock goes on. A machine on which that cannot be done has its test skipped.
func (p *Process) SetClock(ahead time.Duration) {
	p.t.Helper()
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" {
		p.t.Skipf("NOT TESTED: the clock of a process is set on linux/amd64 alone")
	}
	err := p.setClock(ahead)
	if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.EACCES) || errors.Is(err, syscall.EIO) {
		p.t.Skipf("NOT TESTED: the clock of a process cannot be set here: %v", err)
	}
	if err != nil {
		p.t.Fatalf("%s: set its clock: %v", p.name, err)
	}
}

func (p *Process) setClock(ahead time.Duration) error {
	pid := p.PID()
	memory, err := os.OpenFile(fmt.Sprintf("/proc/%d/mem", pid), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer memory.Close()
	from, to, err := vdsoOf(pid)
	if err != nil {
		return err
	}
	vdso := make([]byte, to-from)
	if _, err := memory.ReadAt(vdso, int64(from)); err != nil {
		return err
	}
	// The end of the last page has room.
	stub := len(vdso) - 64
	seconds := binary.LittleEndian.AppendUint64(nil, uint64(int64(ahead/time.Second)))
	if bytes.HasPrefix(vdso[stub:], clockStub) {
		_, err := memory.WriteAt(seconds, int64(from)+int64(stub+len(clockStub)))
		return err
	}
	if len(bytes.Trim(vdso[stub:], "\x00")) > 0 {
		return errors.New("its vDSO has no room")
	}
	at, err := clockIn(vdso)
	if err != nil {
		return err
	}
	if _, err := memory.WriteAt(append(bytes.Clone(clockStub), seconds...), int64(from)+int64(stub)); err != nil {
		return err
	}
	jump := binary.LittleEndian.AppendUint32([]byte{0xe9}, uint32(int32(stub-at-5)))
	// No thread may be within what the jump overwrites.
	for deadline := time.Now().Add(stopTimeout); ; {
		p.Pause()
		inside, err := anyThread(pid, from+uint64(at), from+uint64(at+len(jump)))
		if err == nil && !inside {
			_, err = memory.WriteAt(jump, int64(from)+int64(at))
		}
		p.Resume()
		if err != nil || !inside {
			return err
		}
		if time.Now().After(deadline) {
			return errors.New("it is never out of clock_gettime")
		}
	}
}

// vdsoOf is where a process has its vDSO.
func vdsoOf(pid int) (from, to uint64, err error) {
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(string(maps)) {
		if strings.HasSuffix(strings.TrimSpace(line), "[vdso]") {
			_, err := fmt.Sscanf(line, "%x-%x", &from, &to)
			return from, to, err
		}
	}
	return 0, 0, errors.New("it has no vDSO")
}

// clockIn is where clock_gettime is in a vDSO.
func clockIn(vdso []byte) (int, error) {
	file, err := elf.NewFile(bytes.NewReader(vdso))
	if err != nil {
		return 0, err
	}
	symbols, err := file.DynamicSymbols()
	if err != nil {
		return 0, err
	}
	for _, s := range symbols {
		if s.Name == "__vdso_clock_gettime" {
			return int(s.Value), nil
		}
	}
	return 0, errors.New("its vDSO has no clock_gettime")
}

// anyThread waits until all threads of a process are stopped, and says whether one is somewhere from one address up to another.
func anyThread(pid int, from, to uint64) (bool, error) {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
	if err != nil {
		return false, err
	}
	for _, thread := range threads {
		for deadline := time.Now().Add(stopTimeout); ; time.Sleep(time.Millisecond) {
			state, err := os.ReadFile(filepath.Join(thread, "syscall"))
			if err != nil {
				return false, err
			}
			// NUMBER ARGUMENTS STACK ADDRESS, or "running"
			fields := strings.Fields(string(state))
			if len(fields) > 1 {
				at, err := strconv.ParseUint(fields[len(fields)-1], 0, 64)
				if err != nil {
					return false, err
				}
				if at >= from && at < to {
					return true, nil
				}
				break
			}
			if time.Now().After(deadline) {
				return false, fmt.Errorf("%s is %q, and was to stop", thread, state)
			}
		}
	}
	return false, nil
}
