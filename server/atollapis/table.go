package atollapis

import (
	"context"

	"k8s.io/apimachinery/pkg/api/meta"
	metatable "k8s.io/apimachinery/pkg/api/meta/table"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// table prints objects as `kubectl get` shows them: name, the columns of the resource, age.
type table[T object] struct{ r *resource[T] }

func (t table[T]) ConvertToTable(_ context.Context, obj, options runtime.Object) (*metav1.Table, error) {
	out := &metav1.Table{}
	if m, err := meta.ListAccessor(obj); err == nil {
		out.ResourceVersion, out.Continue, out.RemainingItemCount = m.GetResourceVersion(), m.GetContinue(), m.GetRemainingItemCount()
	} else if m, err := meta.CommonAccessor(obj); err == nil {
		out.ResourceVersion = m.GetResourceVersion()
	}
	if o, ok := options.(*metav1.TableOptions); !ok || !o.NoHeaders {
		out.ColumnDefinitions = append(out.ColumnDefinitions, metav1.TableColumnDefinition{
			Name: "Name", Type: "string", Format: "name", Description: metav1.ObjectMeta{}.SwaggerDoc()["name"]})
		out.ColumnDefinitions = append(out.ColumnDefinitions, t.r.columns...)
		out.ColumnDefinitions = append(out.ColumnDefinitions, metav1.TableColumnDefinition{
			Name: "Age", Type: "string", Description: metav1.ObjectMeta{}.SwaggerDoc()["creationTimestamp"]})
	}
	row := func(obj runtime.Object) error {
		o := obj.(T)
		cells := append([]any{o.GetName()}, t.r.cells(o)...)
		cells = append(cells, metatable.ConvertToHumanReadableDateType(o.GetCreationTimestamp()))
		out.Rows = append(out.Rows, metav1.TableRow{Cells: cells, Object: runtime.RawExtension{Object: obj}})
		return nil
	}
	if meta.IsListType(obj) {
		return out, meta.EachListItem(obj, row)
	}
	return out, row(obj)
}

// column is one that always shows, wide one of `-o wide`.
func column(name, kind, description string) metav1.TableColumnDefinition {
	return metav1.TableColumnDefinition{Name: name, Type: kind, Description: description}
}

func wide(name, kind, description string) metav1.TableColumnDefinition {
	c := column(name, kind, description)
	c.Priority = 1
	return c
}

// conditionCells are the status and the reason of a condition; without it "Unknown" and nothing.
func conditionCells(conditions []metav1.Condition, kind string) (status, reason string) {
	if c := meta.FindStatusCondition(conditions, kind); c != nil {
		return string(c.Status), c.Reason
	}
	return string(metav1.ConditionUnknown), ""
}
